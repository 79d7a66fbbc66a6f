"""Execution of a schedule: a call for each box, on its stage's device, in the schedule's order.

The calls stand in one graph. What a box needs of others are edges of the graph; what the schedule
says beyond that are control dependencies. So TensorFlow's executor runs the devices at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfdist.pipeline.graph.cutting import Piece, StageFunctions
from tfdist.pipeline.graph.gradients import added
from tfdist.pipeline.schedule import Box, Tick, in_order
from tfdist.strategies.placement import HOST
from tfdist.strategies.private_tensorflow import run_independently

Values = dict[str, tf.Tensor]


@dataclass(frozen=True, kw_only=True)
class Replica:
    """One copy of the model, with what it works on.

    Attributes:
      devices: Name of each stage's device.
      micro_batches: For each micro-batch the values of the arguments, by the name in the trace.
    """

    devices: tuple[str, ...]
    micro_batches: Sequence[Values]


@dataclass(frozen=True, kw_only=True)
class Walked:
    """What a replica's walk gives.

    Attributes:
      outputs: For each micro-batch the values of the outputs asked for, in their order.
      gradients: Sum over all micro-batches for each variable's handle, by the name in the trace: a
        tensor, or `tf.IndexedSlices` with the rows of all micro-batches one after the other.
      marks: [boxes, 2] float64, start and end of each box in seconds since the epoch; None if not
        asked for.
      boxes: The boxes in the order of the marks.
    """

    outputs: list[list[tf.Tensor]]
    gradients: Mapping[str, Any]
    marks: tf.Tensor | None
    boxes: list[Box]


def walk(
    stages: Sequence[StageFunctions],
    ticks: Sequence[Tick],
    replicas: Sequence[Replica],
    *,
    weights: Weights,
    captured: Mapping[str, tf.Tensor],
    outputs: Sequence[tf.Tensor],
    one_at_a_time: bool,
    with_marks: bool = False,
) -> list[Walked]:
    """Lays the calls of one step into the current graph.

    A variable that the forward pass changes, such as the moving mean of a batch normalisation, is
    changed in the order of the micro-batches: the first one of each replica, then the second ones.

    Args:
      stages: The stages' functions.
      ticks: The schedule.
      replicas: For each replica the devices and the micro-batches.
      weights: Gives the weights' values on the devices.
      captured: Handles and constants, by their names in the trace.
      outputs: The traced tensors whose values are wanted of every micro-batch.
      one_at_a_time: Whether each box waits for the one before it, on whatever device.
      with_marks: Whether to note when each box begins and ends.

    Returns:
      What each replica gives.
    """
    walkers = [
        _Walker(stages, replica, weights, captured, one_at_a_time, with_marks)
        for replica in replicas
    ]
    for tick in ticks:
        for box in in_order(tick):
            for walker in walkers:
                walker.add(box)
    return [
        Walked(
            outputs=[[known[t.name] for t in outputs] for known in walker.known],
            gradients=walker.gradients(),
            marks=tf.stack(walker.marks) if with_marks else None,
            boxes=walker.boxes,
        )
        for walker in walkers
    ]


class _Walker:
    def __init__(
        self,
        stages: Sequence[StageFunctions],
        replica: Replica,
        weights: Weights,
        captured: Mapping[str, tf.Tensor],
        one_at_a_time: bool,
        with_marks: bool,
    ) -> None:
        self._stages = stages
        self._devices = replica.devices
        self._weights = weights
        self._captured = captured
        self._one_at_a_time = one_at_a_time
        self._with_marks = with_marks
        self._last: dict[str, list[tf.Operation]] = {}  # The last call on each device.
        self._sums: dict[int, list[tf.Tensor]] = {}  # Dense gradients of each stage.
        self._rows: dict[str, list[tf.IndexedSlices]] = {}  # Sparse ones of each handle.
        self._arrived: list[dict[str, list[tf.Tensor]]] = [{} for _ in replica.micro_batches]
        self.known: list[Values] = [dict(values) for values in replica.micro_batches]
        self.boxes: list[Box] = []
        self.marks: list[tf.Tensor] = []

    def add(self, box: Box) -> None:
        if not box.backward:
            self._forward(box)
        elif self._stages[box.stage].backward is not None:
            self._backward(box)

    def gradients(self) -> dict[str, Any]:
        """Adds up over the stages that share a variable; the last ones first."""
        found: dict[str, list[Any]] = {}
        for stage, sums in sorted(self._sums.items(), reverse=True):
            backward = self._stages[stage].backward
            assert backward is not None
            for name, total in zip(backward.dense, sums, strict=True):
                found.setdefault(name, []).append(total)
        for name, rows in self._rows.items():
            found.setdefault(name, []).extend(rows)
        return {name: added(parts) for name, parts in found.items()}

    def _forward(self, box: Box) -> None:
        piece = self._stages[box.stage].forward
        known = self.known[box.micro_batch]
        values = [self._value(tensor, box) for tensor in piece.inputs]
        known.update(
            zip((t.name for t in piece.outputs), self._call(piece, values, box), strict=True)
        )

    def _backward(self, box: Box) -> None:
        backward = self._stages[box.stage].backward
        assert backward is not None
        arrived = self._arrived[box.micro_batch]
        device = self._devices[box.stage]
        gradient_of = {p.name: name for name, p in backward.arriving.items()}
        with tf.device(device):
            values = [
                added(arrived[gradient_of[t.name]])
                if t.name in gradient_of
                else self._value(t, box)
                for t in backward.piece.inputs
            ]
            if box.stage not in self._sums:
                self._sums[box.stage] = [tf.zeros(s.shape, s.dtype) for s in backward.sums]
        results = self._call(backward.piece, [*values, *self._sums[box.stage]], box)
        for tensor in backward.passed_on:
            arrived.setdefault(tensor.name, []).append(results.pop(0))
        self._sums[box.stage] = [results.pop(0) for _ in backward.dense]
        for name in backward.sparse:
            values, indices = results.pop(0), results.pop(0)
            self._rows.setdefault(name, []).append(tf.IndexedSlices(values, indices))

    def _value(self, tensor: tf.Tensor, box: Box) -> tf.Tensor:
        known = self.known[box.micro_batch]
        if tensor.name in known:
            return known[tensor.name]
        if tensor.name in self._captured:
            return self._captured[tensor.name]
        return self._weights(tensor, self._devices[box.stage])

    def _call(self, piece: Piece, values: list[tf.Tensor], box: Box) -> list[tf.Tensor]:
        """Calls a stage's function after the box before it, on the stage's device."""
        device = self._devices[box.stage]
        order = "" if self._one_at_a_time else device
        with tf.control_dependencies(self._last.get(order, [])):
            begun = [self._mark(values)] if self._with_marks else []
            with tf.control_dependencies(begun):
                results = call_on_device(piece, values, device)
        if results:  # A stage may have nothing to give.
            self._last[order] = [results[0].op]
        if self._with_marks:
            ended = self._mark(_first_values(results))
            # Read late, it would make the box look longer.
            self._last.setdefault(order, []).append(ended.op)
            self.boxes.append(box)
            self.marks.append(tf.stack([*begun, ended]))
        return results

    def _mark(self, after: Sequence[tf.Tensor]) -> tf.Tensor:
        """Reads the clock once some tensors exist."""
        with tf.control_dependencies([t.op for t in after]), tf.device(HOST):
            mark = tf.timestamp()
        # Else the readings would come in turn, and the devices with them.
        run_independently(mark.op)
        return mark


def _first_values(results: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Brings a little of the results to the host: a GPU has finished only when that is there."""
    with tf.device(HOST):
        numbers = [t for t in results if t.dtype.is_floating or t.dtype.is_integer]
        return [tf.identity(tf.reshape(t, [-1])[:1]) for t in numbers[:1]] or list(results)


def call_on_device(piece: Piece, values: Sequence[tf.Tensor], device: str) -> list[tf.Tensor]:
    """Calls a stage's function.

    On a logical CPU device its operations run one after the other in one thread. Otherwise the
    operations of one stage would take the cores that are meant for the others, and at a higher
    price. A stage with a loop or a condition needs more threads.

    Args:
      piece: The function.
      values: Its arguments.
      device: Name of the stage's device.

    Returns:
      What the function gives.
    """
    executor = "SINGLE_THREADED_EXECUTOR" if _fits_one_thread(piece, values, device) else ""
    with tf.device(device), tf.experimental.function_executor_type(executor):
        results = list(piece.function(*values))
    if results and not _handles(values):
        # Else the calls with random draws would come in turn, and the devices with them.
        run_independently(results[0].op)
    return results


def _fits_one_thread(piece: Piece, values: Sequence[tf.Tensor], device: str) -> bool:
    """Says whether all operations run on one CPU device, and none waits for another thread.

    An operation runs where the variable is whose handle it takes. With a second device in the
    function, one thread could wait for a tensor that waits for its own next operation; with a call
    in it, all threads could wait for calls that no thread is left to run.
    """
    here = _kind_and_index(device)
    return (
        here[0] == "CPU"
        and all(_kind_and_index(_device_of(handle)) == here for handle in _handles(values))
        and piece.is_straight
    )


def _handles(values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    return [value for value in values if value.dtype == tf.resource]


def _device_of(handle: tf.Tensor) -> str:
    """Returns the device of a variable's handle, of whose stand-in a loop's body has another."""
    graph = getattr(handle, "graph", None)
    outer = {id(inner): one for one, inner in getattr(graph, "captures", ())}.get(id(handle))
    return str(handle.device) if outer is None else _device_of(outer)


def _kind_and_index(device: str) -> tuple[str | None, int | None]:
    spec = tf.DeviceSpec.from_string(device)
    return spec.device_type, spec.device_index


class Weights:
    """Reads each weight once, and copies it once to each device that uses it.

    Args:
      handle_of: From a variable's handle in the trace to its handle in the graph of the calls.
    """

    def __init__(self, handle_of: Callable[[tf.Tensor], tf.Tensor]) -> None:
        self._handle_of = handle_of
        self._copies: dict[tuple[str, str], tf.Tensor] = {}

    def __call__(self, read: tf.Tensor, device: str) -> tf.Tensor:
        """Returns a weight's value.

        Args:
          read: What the trace reads of the variable.
          device: Where the value shall be.
        """
        traced_handle = read.op.inputs[0]
        key = traced_handle.name, device
        if key not in self._copies:
            handle = self._handle_of(traced_handle)
            # Where the variable is, and not after what the calls wait for.
            with tf.control_dependencies(None), tf.device(None):
                value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=read.dtype)
            value = tf.ensure_shape(value, read.shape)
            with tf.device(device):
                self._copies[key] = tf.identity(value)
        return self._copies[key]
