r"""Execution of a schedule: one function call for each box, on the device of its stage.

The calls of a step are in one graph. This is the "interleaved" schedule of one replica with two
stages and three micro-batches:

    tick        0     1     2     3     4     5     6     7
    device 0   [F0]=>[F1]=======>[B0]=>[F2]=>[B1]=======>[B2]
                    \            ^          \            ^
                     v          /            v          /
    device 1         [F0]=>[B0]=>[F1]=>[B1]=>[F2]=>[B2]

- `Fm` and `Bm` are the boxes: calls of a stage's forward and backward function for micro-batch m.
- `=>` is a control edge. A box runs after the previous box on its device. In the schedule
  "sequential" it runs after the previous box of the replica, on any device.
- The diagonal arrows are data edges: activations go down to the next stage, gradients go up to the
  previous one. They are drawn for micro-batches 0 and 2; those of micro-batch 1 are alike.
- Not drawn are two more data edges: `Fm` gives `Bm` of the same stage the activations that it
  needs, and each `B` of a stage gives its next `B` the sums of the gradients so far.

A tick only orders the calls: no box waits for a clock or for the whole tick. TensorFlow's executor
runs a box as soon as its inputs exist and its control edge is satisfied, so the devices work at the
same time. Each weight is read once a step, where its variable is, and copied to each device that
uses it (`Weights`). The clock readings of a profile are on the host.

Pipelining of micro-batches with one weight update for all of them follows GPipe (Huang et al.,
2019). The "interleaved" schedule is 1F1B of PipeDream (Narayanan et al., 2019).
`tfdist.pipeline.schedule` has the formulas and the details.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.pipeline.graph.cutting import Piece, StageFunctions
from tfdist.pipeline.graph.gradients import added
from tfdist.pipeline.graph.op_stages import read_of_weight
from tfdist.pipeline.schedule import Box, Tick, in_order
from tfdist.strategies.placement import HOST
from tfdist.strategies.private_tensorflow import run_independently

Values = dict[str, tf.Tensor]


@dataclass(frozen=True, kw_only=True)
class Replica:
    """One copy of the model, with its devices and its micro-batches."""

    devices: tuple[str, ...]  # Name of each stage's device.
    # For each micro-batch the values of the arguments, [batch, ...] each, and the handles of
    # variables of which each replica has its own, by their names in the trace.
    micro_batches: Sequence[Values]


@dataclass(frozen=True, kw_only=True)
class ReplicaResult:
    """The results of one replica."""

    # For each micro-batch the values of the requested outputs, in the order of the request.
    outputs: list[list[tf.Tensor]]
    # Sum over all micro-batches for each variable's handle, by the name in the trace: a tensor, or
    # `tf.IndexedSlices` with the rows of all micro-batches one after the other.
    gradients: Mapping[str, Any]
    # [boxes, 2] float64, start and end of each box in seconds since the epoch; None if not
    # requested.
    marks: tf.Tensor | None
    boxes: list[Box]  # The boxes in the order of the marks; empty without marks.


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
    progress: Callable[[float], None] = lambda share: None,
) -> list[ReplicaResult]:
    """Adds the calls of one step to the current graph.

    A variable that the forward pass changes, such as the moving mean of a batch normalisation, is
    changed in the order of the micro-batches: by the first one of each replica, then by the second
    ones.

    `captured` are handles and constants by their names in the trace, and `outputs` the traced
    tensors whose values are returned for every micro-batch. With `one_at_a_time` each box waits for
    the previous one on any device; with `with_marks` its begin and end are recorded. `progress` is
    called after each box with the share of the boxes that are in the graph, above 0 to 1: thousands
    of micro-batches take seconds to minutes.
    """
    calls = Calls()
    walkers = [
        _Walker(stages, replica, weights, captured, calls, one_at_a_time, with_marks)
        for replica in replicas
    ]
    boxes = [box for tick in ticks for box in in_order(tick)]
    for num_added, box in enumerate(boxes, start=1):
        for walker in walkers:
            walker.add(box)
        progress(num_added / len(boxes))
    return [
        ReplicaResult(
            outputs=[[known[t.name] for t in outputs] for known in walker.known],
            gradients=walker.gradients(),
            marks=tf.stack(walker.marks) if with_marks else None,  # [boxes, 2]
            boxes=walker.boxes,
        )
        for walker in walkers
    ]


# Adds the boxes of one replica to the graph, one after the other.
class _Walker:
    def __init__(
        self,
        stages: Sequence[StageFunctions],
        replica: Replica,
        weights: Weights,
        captured: Mapping[str, tf.Tensor],
        calls: Calls,
        one_at_a_time: bool,
        with_marks: bool,
    ) -> None:
        self._stages = stages
        self._calls = calls
        self._devices = replica.devices
        self._weights = weights
        self._captured = captured
        self._one_at_a_time = one_at_a_time
        self._with_marks = with_marks
        # The last call on each device: where the next control edge begins.
        self._last: dict[str, list[tf.Operation]] = {}
        # Sums of the dense gradients of each stage, in the shapes of the variables.
        self._sums: dict[int, list[tf.Tensor]] = {}
        # Sparse gradients of each handle, one for each micro-batch.
        self._rows: dict[str, list[tf.IndexedSlices]] = {}
        # For each micro-batch the gradients that later stages have computed for a tensor.
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
        """Adds the gradients of the stages that share a variable, from the last stage on."""
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
        # Arguments and activations, such as [micro_batch, ...], and weights.
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
                # The shapes of the variables.
                self._sums[box.stage] = [tf.zeros(s.shape, s.dtype) for s in backward.sums]
        # Gradients of `passed_on`, new sums, then (values, indices) of each sparse gradient.
        results = self._call(backward.piece, [*values, *self._sums[box.stage]], box)
        for tensor in backward.passed_on:
            arrived.setdefault(tensor.name, []).append(results.pop(0))
        self._sums[box.stage] = [results.pop(0) for _ in backward.dense]
        for name in backward.sparse:
            values, indices = results.pop(0), results.pop(0)  # [rows, ...], [rows]
            self._rows.setdefault(name, []).append(tf.IndexedSlices(values, indices))

    def _value(self, tensor: tf.Tensor, box: Box) -> tf.Tensor:
        known = self.known[box.micro_batch]
        if tensor.name in known:
            return known[tensor.name]
        if tensor.name in self._captured:
            return self._captured[tensor.name]
        return self._weights(tensor, self._devices[box.stage])

    def _call(self, piece: Piece, values: list[tf.Tensor], box: Box) -> list[tf.Tensor]:
        """Calls a stage's function on its device, after the previous box on that device."""
        device = self._devices[box.stage]
        order = "" if self._one_at_a_time else device
        with tf.control_dependencies(self._last.get(order, [])):
            begun = [self._mark(values)] if self._with_marks else []
            with tf.control_dependencies(begun):
                results = self._calls.add(piece, values, device)
        if results:  # A stage may have no results.
            self._last[order] = [results[0].op]
        if self._with_marks:
            ended = self._mark(_first_values(results))
            # The next box waits for the reading: a late reading would make this box look longer.
            self._last.setdefault(order, []).append(ended.op)
            self.boxes.append(box)
            self.marks.append(tf.stack([*begun, ended]))  # [2]
        return results

    def _mark(self, after: Sequence[tf.Tensor]) -> tf.Tensor:
        """Reads the host's clock once the tensors `after` exist."""
        with tf.control_dependencies([t.op for t in after]), tf.device(HOST):
            mark = tf.timestamp()  # [], seconds
        # Otherwise TensorFlow would order the readings, and with them the devices' work.
        run_independently(mark.op)
        return mark


def _first_values(results: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Copies one element of the results to the host.

    A GPU runs asynchronously: it has finished only when the copy arrives. Results without numbers
    are returned as they are.
    """
    with tf.device(HOST):
        numbers = [t for t in results if t.dtype.is_floating or t.dtype.is_integer]
        # [1], or [0] of an empty result.
        return [tf.identity(tf.reshape(t, [-1])[:1]) for t in numbers[:1]] or list(results)


class Calls:
    """The calls of the stages' functions in one graph.

    A later call of a function on a device copies the first one's attributes, since its inputs have
    the same shapes. For a call through the function TensorFlow would infer the shapes of all
    operations in it again, which takes most of the time in which a graph of many micro-batches is
    built.
    """

    def __init__(self) -> None:
        self._first: dict[tuple[int, str], tuple[tf.Operation, Mapping[str, Any]]] = {}

    def add(self, piece: Piece, values: Sequence[tf.Tensor], device: str) -> list[tf.Tensor]:
        """Calls a stage's function on a device, as `call_on_device` does."""
        key = id(piece), device
        if key in self._first:
            return _call_again(*self._first[key], values, device)
        results = call_on_device(piece, values, device)
        if results and not any(t.dtype in (tf.resource, tf.variant) for t in results):
            op = results[0].op
            no_inference = v1.AttrValue(b=True)
            attributes = {**op.node_def.attr, "_disable_call_shape_inference": no_inference}
            self._first[key] = op, attributes
        return results


def _call_again(
    first: tf.Operation, attributes: Mapping[str, Any], values: Sequence[tf.Tensor], device: str
) -> list[tf.Tensor]:
    """Adds a call with the attributes of the first one; returns its results."""
    with tf.device(device):
        op = v1.get_default_graph().create_op(
            first.type,
            values,
            [result.dtype for result in first.outputs],
            name=first.type,
            attrs=attributes,
        )
    for result, known in zip(op.outputs, first.outputs, strict=True):
        result.set_shape(known.shape)
    if not _handles(values):
        run_independently(op)
    return list(op.outputs)


def call_on_device(piece: Piece, values: Sequence[tf.Tensor], device: str) -> list[tf.Tensor]:
    """Calls a stage's function; returns its results.

    On a logical CPU device its operations run one after the other in one thread. With more threads
    the operations of one stage would take the cores that are meant for the other stages, at a
    higher cost. A stage with a loop or a condition needs more threads and gets them.
    """
    executor = "SINGLE_THREADED_EXECUTOR" if _fits_one_thread(piece, values, device) else ""
    with tf.device(device), tf.experimental.function_executor_type(executor):
        results = list(piece.function(*values))
    if results and not _handles(values):
        # Otherwise TensorFlow would order the calls that draw random numbers, and with them the
        # devices' work.
        run_independently(results[0].op)
    return results


def _fits_one_thread(piece: Piece, values: Sequence[tf.Tensor], device: str) -> bool:
    """Returns whether all operations run on one CPU device, and none waits for another thread.

    An operation that takes a variable's handle runs on the variable's device. Two cases could
    deadlock. With a second device in the function, the only thread could wait for a tensor that
    needs this thread's next operation. With a call in the function, all threads could wait for
    calls that no thread is free to run.
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
    """Returns the device of a variable's handle.

    Inside a loop's body the captured handle is a placeholder, which reports another device.
    """
    graph = getattr(handle, "graph", None)
    outer = {id(inner): one for one, inner in getattr(graph, "captures", ())}.get(id(handle))
    return str(handle.device) if outer is None else _device_of(outer)


def _kind_and_index(device: str) -> tuple[str | None, int | None]:
    spec = tf.DeviceSpec.from_string(device)
    return spec.device_type, spec.device_index


class Weights:
    """Values of the weights: each is read once, and copied once to each device that uses it.

    A stage that casts a weight to half precision gets the half: it is cast where the variable is,
    so that half the bytes are copied. `handle_of` maps a variable's handle in the trace to the one
    in the graph of the calls.
    """

    def __init__(self, handle_of: Callable[[tf.Tensor], tf.Tensor]) -> None:
        self._handle_of = handle_of
        self._values: dict[tuple[str, tf.DType], tf.Tensor] = {}
        self._copies: dict[tuple[str, tf.DType, str], tf.Tensor] = {}

    def __call__(self, weight: tf.Tensor, device: str) -> tf.Tensor:
        """Returns on a device the value of a read of the trace, or of its cast to half."""
        read = read_of_weight(weight.op)
        assert read is not None
        name = read.inputs[0].name
        if (name, weight.dtype) not in self._values:
            handle = self._handle_of(read.inputs[0])
            # Without the control dependencies of the calls.
            with tf.control_dependencies(None), tf.device(None), tf.device(_device_of(handle)):
                value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=read.outputs[0].dtype)
                value = tf.ensure_shape(value, weight.shape)  # The variable's shape.
                self._values[name, weight.dtype] = tf.cast(value, weight.dtype)
        if (name, weight.dtype, device) not in self._copies:
            with tf.device(device):
                copy = tf.identity(self._values[name, weight.dtype])
            self._copies[name, weight.dtype, device] = copy
        return self._copies[name, weight.dtype, device]
