"""Gradient accumulation: the sums over a step's micro-batches in one replica, on its device.

    micro-batch     1             2 ... A - 1     A
    device          sum = g1      sum += g        sum + gA, times 1 / A  ---> host_call
    host                                                                      reduction, update

Each micro-batch is a session call, or an iteration of a loop of micro-batches. The sums are float32
and begin again in each step: they are no variables of the model, and no checkpoint needs them. Rows
of sparse gradients are collected, so that `host_call` gets the rows of the whole batch.

With a loss weight w, each micro-batch counts by its weight: the sum is that of w g, divided by that
of w. A micro-batch of weight 0 adds nothing, even if its gradient is not finite.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Literal

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.estimator.graph.global_step import handle_of
from tfdist.estimator.inputs.queued_input import leaves
from tfdist.estimator.spec import EstimatorSpec
from tfdist.strategies.graph_walks import descendants
from tfdist.strategies.placement import HOST
from tfdist.strategies.reductions.early_reduction import behind_gates, without_gates
from tfdist.strategies.reductions.slices import values_of
from tfdist.training.half_precision import before_cast

# A scalar in each dtype of sums.
Factor = Mapping[tf.DType, tf.Tensor]


@dataclass(frozen=True, kw_only=True)
class Accumulation:
    """The number of micro-batches in a step, and what `host_call` gets of their gradients."""

    count: int = 1
    reduction: Literal["mean", "sum"] = "mean"


@dataclass(frozen=True, kw_only=True)
class StepValues:
    """The values of one replica for a step.

    Attributes:
      tensors: The tensors that `host_call` gets.
      loss: Scalar, the mean over the micro-batches.
      weight: float32 scalar, the sum of the loss weights; None without any.
      metrics: The training metrics, a scalar each: the mean over the micro-batches.
    """

    tensors: Sequence[Any]
    loss: tf.Tensor
    weight: tf.Tensor | None
    metrics: Mapping[str, tf.Tensor]


def of_one_batch(spec: EstimatorSpec) -> StepValues:
    """Returns the values of a step of one micro-batch."""
    weight = _weight_of(spec)
    tensors = () if spec.host_call is None else spec.host_call[1]
    is_counted = None if weight is None else tf.sign(weight)  # 0 or 1, []
    return StepValues(
        tensors=tensors,
        loss=_weighted(spec.loss, is_counted),
        weight=weight,
        metrics={name: _weighted(one, is_counted) for name, one in spec.training_metrics.items()},
    )


class StepSums:
    """The sums over the micro-batches of a step in one replica.

    A session call, or an iteration of a loop, runs what one of `first`, `further` and `last`
    returns. They add ops to the current graph, as the constructor does, on the current device.
    """

    def __init__(
        self, spec: EstimatorSpec, batch: Any, accumulation: Accumulation, replica: int
    ) -> None:
        assert spec.host_call is not None
        self._tensors = spec.host_call[1]
        self._accumulation = accumulation
        weight = _weight_of(spec)
        changes = _change_with(batch, self._tensors)
        self._parts: list[_Dense | _Rows | None] = [
            (_Rows if isinstance(tensor, tf.IndexedSlices) else _Dense)(
                tensor, weight, f"tfdist_sum_{replica}_{i}"
            )
            if changes[i]
            else None
            for i, tensor in enumerate(self._tensors)
        ]
        self._loss = _Dense(spec.loss, weight, f"tfdist_sum_{replica}_loss")
        self._metrics = {
            metric: _Dense(value, weight, f"tfdist_sum_{replica}_metric_{i}")
            for i, (metric, value) in enumerate(spec.training_metrics.items())
        }
        self._weight = None
        if weight is not None:
            self._weight = _Dense(weight, None, f"tfdist_sum_{replica}_weight")

    def first(self) -> tf.Operation:
        """Returns the op of the first micro-batch."""
        return tf.group(*(part.begin() for part in self._all_parts()))

    def further(self) -> tf.Operation:
        """Returns the op of each micro-batch between the first and the last."""
        return tf.group(*(part.add() for part in self._all_parts()))

    def last(self) -> StepValues:
        """Returns the values of the step, which the last micro-batch completes."""
        count = float(self._accumulation.count)
        one = tf.constant(1.0)
        weight = None if self._weight is None else self._weight.total({tf.float32: one})  # []
        # In float64 for gradients in float64; [].
        inverse = tf.constant(1.0 / count, tf.float64) if weight is None else _inverse(weight)
        mean = _in_both(inverse)
        factor = mean if self._accumulation.reduction == "mean" else _in_both(inverse * count)
        return StepValues(
            tensors=[
                tensor if part is None else part.total(factor)
                for part, tensor in zip(self._parts, self._tensors, strict=True)
            ],
            loss=self._loss.total(mean),
            weight=weight,
            metrics={name: part.total(mean) for name, part in self._metrics.items()},
        )

    def _all_parts(self) -> list[_Dense | _Rows]:
        parts = [*self._parts, self._loss, *self._metrics.values(), self._weight]
        return [part for part in parts if part is not None]


class _Dense:
    """The sum of a dense tensor, in float32; float64 for float64.

    Without a weight, a scalar, each micro-batch counts once. The name of its memory is the same in
    each training of this process.
    """

    def __init__(self, tensor: tf.Tensor, weight: tf.Tensor | None, name: str) -> None:
        self._dtype = tensor.dtype
        # The sum needs no gate: what is made of its total waits for it.
        source, self._gates = without_gates(tensor)
        self._own = _weighted(_widened(source), weight)  # of the tensor's shape
        self._memory = _memory(self._own.dtype, tensor.shape, name)

    def begin(self) -> tf.Operation:
        return tf.raw_ops.AssignVariableOp(resource=self._memory, value=self._own)

    def add(self) -> tf.Operation:
        return tf.raw_ops.AssignAddVariableOp(resource=self._memory, value=self._own)

    def total(self, factor: Factor) -> tf.Tensor:
        """Returns the sum with the last micro-batch, times a factor."""
        before = tf.raw_ops.ReadVariableOp(resource=self._memory, dtype=self._own.dtype)
        total = (self._own + before) * factor[self._own.dtype]
        return behind_gates(tf.cast(total, self._dtype), self._gates)


class _Rows:
    """The rows of a sparse gradient: those of all micro-batches. The arguments are `_Dense`'s."""

    def __init__(self, slices: tf.IndexedSlices, weight: tf.Tensor | None, name: str) -> None:
        self._slices = slices
        self._values = _weighted(_widened(slices.values), weight)  # [rows, ...]
        shape = tf.TensorShape([None]).concatenate(slices.values.shape[1:])
        self._values_memory = _memory(self._values.dtype, shape, f"{name}_values")
        self._indices_memory = _memory(slices.indices.dtype, tf.TensorShape([None]), f"{name}_rows")

    def begin(self) -> tf.Operation:
        return self._keep(self._values, self._slices.indices)

    def add(self) -> tf.Operation:
        return self._keep(*self._with_those_before())

    def total(self, factor: Factor) -> tf.IndexedSlices:
        values, indices = self._with_those_before()
        values = tf.cast(values * factor[values.dtype], self._slices.dtype)
        return tf.IndexedSlices(values, indices, self._slices.dense_shape)

    def _keep(self, values: tf.Tensor, indices: tf.Tensor) -> tf.Operation:
        return tf.group(
            tf.raw_ops.AssignVariableOp(resource=self._values_memory, value=values),
            tf.raw_ops.AssignVariableOp(resource=self._indices_memory, value=indices),
        )

    def _with_those_before(self) -> tuple[tf.Tensor, tf.Tensor]:
        read = tf.raw_ops.ReadVariableOp
        values = read(resource=self._values_memory, dtype=self._values.dtype)
        indices = read(resource=self._indices_memory, dtype=self._slices.indices.dtype)
        return (
            tf.concat([values, self._values], axis=0),
            tf.concat([indices, self._slices.indices], axis=0),
        )


def _memory(dtype: tf.DType, shape: tf.TensorShape, name: str) -> tf.Tensor:
    """Returns the handle of memory on the current device that outlasts a session call.

    It is no `tf.Variable`: strategies, savers and initialisers do not know of it.
    """
    with tf.init_scope():  # With a loop of micro-batches, in the graph around the loop.
        return tf.raw_ops.VarHandleOp(
            dtype=dtype, shape=shape, shared_name=f"{name}_{dtype.name}", name=name
        )


def _widened(tensor: tf.Tensor) -> tf.Tensor:
    """Returns a tensor in float32, on the current device; float64 stays.

    A gradient in half precision that becomes float32 on the host does so here instead.
    """
    tensor = before_cast(tensor)
    return tensor if tensor.dtype == tf.float64 else tf.cast(tensor, tf.float32)


def _weight_of(spec: EstimatorSpec) -> tf.Tensor | None:
    """Returns the loss weight as a float32 scalar; a step fails where it is negative or NaN."""
    if spec.loss_weight is None:
        return None
    weight = tf.reshape(tf.cast(spec.loss_weight, tf.float32), [])
    with tf.device(HOST):
        is_valid = v1.assert_non_negative(weight, message="loss_weight must not be negative.")
    with tf.control_dependencies([is_valid]):
        return tf.identity(weight)


def _weighted(tensor: tf.Tensor, weight: tf.Tensor | None) -> tf.Tensor:
    """Returns a tensor times a weight; 0 for a weight of 0, also where the tensor is NaN."""
    if weight is None:
        return tensor
    return tf.math.multiply_no_nan(tensor, tf.cast(weight, tensor.dtype))


def _in_both(factor: tf.Tensor) -> Factor:
    return {dtype: tf.cast(factor, dtype) for dtype in (tf.float32, tf.float64)}


def _inverse(weight: tf.Tensor) -> tf.Tensor:
    return tf.math.divide_no_nan(tf.constant(1.0, tf.float64), tf.cast(weight, tf.float64))


def _change_with(batch: Any, tensors: Sequence[Any]) -> list[bool]:
    """Returns, for each tensor, whether micro-batches are to be added up in it.

    They are in floating-point tensors. A scalar that is computed neither from the batch nor from a
    trainable variable, such as a learning rate, and a tensor of another type, are handed on as the
    last micro-batch has them.
    """
    values = [values_of(tensor) for tensor in tensors]
    computed = _computed_from(batch, v1.get_default_graph())
    return [
        isinstance(value, tf.Tensor)
        and value.dtype.is_floating
        and (value.shape.rank != 0 or value.op in computed)
        for value in values
    ]


def _computed_from(batch: Any, graph: tf.Graph) -> Set[tf.Operation]:
    """Returns the ops of a graph that are computed from a batch or from a trainable variable."""
    sources = [handle_of(variable) for variable in v1.trainable_variables()]
    for part in batch:
        sources += tf.nest.flatten(leaves(part), expand_composites=True)
    captured = {id(outside): inside for outside, inside in getattr(graph, "captures", ())}
    ops = [
        captured.get(id(source), source).op for source in sources if isinstance(source, tf.Tensor)
    ]
    return descendants(ops, is_inside=lambda op: op.graph is graph)
