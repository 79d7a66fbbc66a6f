"""GradientAccumulationOptimizer: one update for several micro-batches, in the `train_op` form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.cluster.tasks import checked_count
from tfdist.strategies.placement import HOST
from tfdist.strategies.reductions.slices import on_values
from tfdist.training.half_precision import computed_in
from tfdist.training.wrappers.optimizer_wrapper import OptimizerWrapper, Pairs, increment

# Graph collection of `AccumulatedUpdate`s. Only keys that are strings are exported with a graph.
_UPDATES = ("tfdist_accumulated_updates",)


@dataclass(frozen=True, kw_only=True)
class AccumulatedUpdate:
    """An update of an accumulating optimizer in a graph, for the Estimator."""

    counts_steps: bool  # Whether it increments the global step.
    number: tf.Variable  # int64 scalar variable: the micro-batches added up since the last update.


class GradientAccumulationOptimizer(OptimizerWrapper):
    """An optimizer that adds up the gradients of several session calls, and updates once.

    Each call reduces its micro-batch's gradient over replicas and workers, and adds it to a slot:

        call             1 ... n - 1                 n
        gradient         reduced, added              reduced, added
        wrapped          -                           updates with the mean, slots become 0
        global_step      -                           + 1, if `apply_gradients` or `minimize` got it

    So no reduction is inside a condition. It is for `train_op`. In `host_call` it is refused: with
    `DeviceConfig(gradient_accumulation=n)` such a model reduces only once a step.

    The sums are float32 (float64 for float64), on the host, in the checkpoint: a training that is
    resumed between two updates goes on there. Of a sparse gradient, the wrapped optimizer gets the
    rows that any of the micro-batches had. Each micro-batch counts once; a mean by `loss_weight`
    needs `DeviceConfig(gradient_accumulation=n)`.

    Examples:
      >>> weight = tf.Variable([3.0, 4.0])
      >>> optimizer = training.GradientAccumulationOptimizer(training.SGD(1.0), 2)
      >>> for gradient in ([1.0, 0.0], [3.0, 0.0]):
      ...     optimizer.apply_gradients([(tf.constant(gradient), weight)])
      ...     print(weight.numpy())
      [3. 4.]
      [1. 4.]

    Args:
      optimizer: A v1 optimizer or one of tf_keras.
      num_mini_batches: Micro-batches of an update.
      reduction_method: Whether the optimizer gets the "mean" or the "sum" of their gradients.

    Raises:
      TypeError: If `optimizer` has no `apply_gradients`.
      ValueError: If the number is not an integer of at least 1, the method is another one, or
        wrappers are in a wrong order.
    """

    def __init__(
        self,
        optimizer: Any,
        num_mini_batches: int,
        reduction_method: Literal["mean", "sum"] = "mean",
    ) -> None:
        super().__init__(optimizer)
        self._count = checked_count("num_mini_batches", num_mini_batches)
        if reduction_method not in ("mean", "sum"):
            raise ValueError(f'reduction_method must be "mean" or "sum", got {reduction_method!r}.')
        self._divisor = self._count if reduction_method == "mean" else 1

    def _update_and_count(self, reduced: Pairs, global_step: Any) -> Any:
        variables = [variable for _, variable in reduced]
        with tf.init_scope():
            sums = [self._slot(variable, "accumulated", variable.shape) for variable in variables]
            rows = [
                self._slot(variable, "accumulated_rows", variable.shape[:1])
                if isinstance(gradient, tf.IndexedSlices)
                else None
                for gradient, variable in reduced
            ]
            number = self._create_non_slot_variable(
                tf.constant(0, tf.int64), "accumulated_micro_batches", variables[0]
            )
            if not tf.executing_eagerly():
                own = AccumulatedUpdate(counts_steps=global_step is not None, number=number)
                v1.add_to_collection(_UPDATES, own)
        added = [
            _add(gradient, total, touched)
            for (gradient, _), total, touched in zip(reduced, sums, rows, strict=True)
        ]
        with tf.control_dependencies(added):
            totals = [
                _total(total.read_value(), None if touched is None else touched.read_value())
                for total, touched in zip(sums, rows, strict=True)
            ]
            is_last = tf.equal(number.read_value(), self._count - 1)  # bool []

        def update() -> Any:
            pairs = [
                (_divided(total, self._divisor, variable), variable)
                for total, variable in zip(totals, variables, strict=True)
            ]
            op = self.apply_reduced(pairs)
            op = op if global_step is None else increment(global_step, after=op)
            memory = [*sums, *(row for row in rows if row is not None), number]
            with tf.control_dependencies([op]):
                return tf.group(*(v1.assign(one, tf.zeros(one.shape, one.dtype)) for one in memory))

        with tf.device(HOST):
            return tf.cond(is_last, update, lambda: tf.group(v1.assign_add(number, 1)))

    def _slot(self, variable: Any, name: str, shape: tf.TensorShape) -> Any:
        return self._get_or_make_slot_with_initializer(
            variable,
            v1.zeros_initializer(),
            shape,
            computed_in(variable),
            name,
            f"{self.get_name()}/{name}",
        )

    def variables(self) -> list[Any]:
        return [*v1.train.Optimizer.variables(self), *super().variables()]


def accumulated_updates() -> list[AccumulatedUpdate]:
    """Returns the updates of accumulating optimizers in the graph, around a loop or branch."""
    with tf.init_scope():
        return [] if tf.executing_eagerly() else list(v1.get_collection(_UPDATES))


def _add(gradient: Any, total: Any, touched: Any) -> Any:
    """Returns the op that adds a gradient to its sum; a sparse one also notes its rows."""
    if touched is None:
        return v1.assign_add(total, tf.cast(gradient, total.dtype)).op
    ones = tf.ones_like(gradient.indices, touched.dtype)  # [rows]
    return tf.group(
        v1.scatter_add(total, gradient.indices, tf.cast(gradient.values, total.dtype)),
        v1.scatter_update(touched, gradient.indices, ones),
    )


def _total(total: tf.Tensor, touched: tf.Tensor | None) -> Any:
    """Returns the sum, with its rows alone if it is sparse."""
    if touched is None:
        return total
    indices = tf.where(touched > 0)[:, 0]  # [rows]
    return tf.IndexedSlices(tf.gather(total, indices), indices, tf.shape(total, tf.int64))


def _divided(total: Any, divisor: int, variable: Any) -> Any:
    """Returns a sum divided by a number, in the dtype of its variable."""
    dtype = variable.dtype.base_dtype
    return on_values(lambda tensor: tf.cast(tensor / divisor, dtype), total)
