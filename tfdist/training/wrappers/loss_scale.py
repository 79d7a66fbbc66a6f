"""LossScaleOptimizer: small half-precision gradients survive, and steps that overflow are skipped.

device of each replica            host of each worker
-----------------------           ------------------------------------------------------------
loss x scale                 <--- scale
backward, in half precision
scaled gradients             ---> float32 -> summed over replicas and workers   (a collective)
                                  all finite?            (bit-equal, so alike on every worker)
                                  yes: / scale -> the wrapped optimizer updates
                                  no:  weights and slots stay
                                  next scale, counters
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.strategies.placement import HOST
from tfdist.strategies.reductions.slices import scaled, values_of
from tfdist.training.half_precision import in_float32
from tfdist.training.name_patterns import name_of
from tfdist.training.wrappers.optimizer_wrapper import OptimizerWrapper, Pairs, if_counted
from tfdist.training.wrappers.scale_rules import DynamicLossScale, ScaleRule

# Graph collection of the `LossScale`s in a graph. Only keys that are strings are exported with it.
_LOSS_SCALES = ("tfdist_loss_scales",)


@dataclass(frozen=True, kw_only=True)
class LossScale:
    """The loss scale of a graph, for the Estimator, which reports it."""

    # Adds ops that read the scale of the coming step, a float32 scalar.
    scale: Callable[[], tf.Tensor]
    skipped_steps: tf.Variable  # int64 scalar variable: the number of skipped steps so far.
    # int64 scalar variable: the number of steps just before that were skipped with the lowest
    # scale.
    skipped_in_a_row: tf.Variable
    # float64 variable, [3 + gradients], not in the checkpoint: the number of the last skipped step,
    # the scale before and after it, and 1 for each gradient that was not finite.
    last_skipped: tf.Variable
    names: Sequence[str]  # The names of the variables that the gradients are for.
    settings: str  # The settings in words, equal on all workers.


class LossScaleOptimizer(OptimizerWrapper):
    """An optimizer that multiplies the loss by a scale, and divides the gradients by it.

    Micikevicius et al., "Mixed Precision Training", 2018. Half precision has no gradients below
    6e-8 (float16); multiplied by the scale they are kept. If a reduced gradient is not finite, the
    step is skipped on all workers: the global step counts it, weights and slots stay. The scale
    adapts. Its state is in the checkpoint, as `loss_scale/...`.

    Take the gradients from `compute_gradients`, or compute them from `get_scaled_loss(loss)`: those
    of a loss that was not scaled are refused.

    Examples:
      >>> weight = tf.Variable(3.0)
      >>> optimizer = training.LossScaleOptimizer(training.SGD(1.0))
      >>> for factor in (1.0, float("inf")):  # The second step is skipped.
      ...     optimizer.minimize(lambda: factor * weight)
      ...     print(weight.numpy(), optimizer.loss_scale.numpy())
      2.0 32768.0
      2.0 16384.0

    Args:
      inner_optimizer: A v1 optimizer, one of tf_keras, or another wrapper of this package.
      rule: The scale of each step: a `DynamicLossScale`, `FixedLossScale`, `ScheduledLossScale` or
        `HistogramLossScale`. None is `DynamicLossScale()`.

    Raises:
      TypeError: If `inner_optimizer` has no `apply_gradients`, or `rule` is no rule.
      ValueError: If wrappers are in a wrong order.
    """

    def __init__(self, inner_optimizer: Any, rule: ScaleRule | None = None) -> None:
        name = type(inner_optimizer).__name__
        if name in _OTHERS and not isinstance(inner_optimizer, OptimizerWrapper):
            raise ValueError(
                f"the loss would be scaled twice, since {name} of TensorFlow or Keras scales it, "
                "too. Give LossScaleOptimizer the optimizer inside it."
            )
        super().__init__(inner_optimizer)
        if rule is not None and not isinstance(rule, ScaleRule):
            raise TypeError(
                "rule must be a DynamicLossScale, FixedLossScale, ScheduledLossScale or "
                f"HistogramLossScale of tfdist.training, got {rule!r}."
            )
        self._rule = DynamicLossScale() if rule is None else rule
        self._state: dict[Any, dict[str, Any]] = {}
        self._has_scaled = self._has_unscaled = False

    @property
    def loss_scale(self) -> tf.Tensor:
        """The scale of the coming step, a float32 scalar."""
        return self._scale(self._variables())

    @property
    def skipped_steps(self) -> tf.Tensor:
        """The number of steps that were skipped so far, an int64 scalar."""
        return self._variables()["skipped_steps"].read_value()

    def get_scaled_loss(self, loss: Any) -> Any:
        """Returns a `loss` times the scale; both are scalars, or functions that return one."""
        if callable(loss):
            return lambda: self.get_scaled_loss(loss())
        self._has_scaled, self._has_unscaled = True, False
        loss = tf.convert_to_tensor(loss)
        if loss.dtype.size < tf.float32.size:
            v1.logging.warning(
                "The loss is %s, in which a scaled loss soon is infinite. Compute it in float32: "
                "tf.cast(logits, tf.float32).",
                loss.dtype.name,
            )
            loss = tf.cast(loss, tf.float32)
        return loss * tf.cast(self.loss_scale, loss.dtype)

    def loss_to_differentiate(self, loss: Any) -> Any:
        return self.get_scaled_loss(loss)

    def get_unscaled_gradients(self, gradients: Iterable[Any]) -> list[Any]:
        """Returns gradients of a scaled loss divided by the scale, in float32.

        For a host function that changes the `gradients`, tensors, slices or None, before it gives
        them to `apply_gradients`, which then does not divide them again.
        """
        self._has_unscaled = True
        inverse = _inverse(self.loss_scale)
        return [
            None if gradient is None else scaled(in_float32(gradient), inverse)
            for gradient in gradients
        ]

    def variables(self) -> list[Any]:
        return [*super().variables(), *self._variables().values()]

    def _update(self, reduced: Pairs) -> Any:
        if not self._has_scaled:
            raise ValueError(
                f"{self.get_name()}.apply_gradients got gradients of a loss that was not scaled. "
                "Take them from compute_gradients(loss), or from get_scaled_loss(loss)."
            )
        variables = self._variables()
        state = {name: variables[name].read_value() for name in self._rule.first_state()}
        step = _global_step()  # []
        scale = self._rule.scale(state, step)  # []
        values = [values_of(gradient) for gradient, _ in reduced]
        is_finite = _are_finite(values)
        as_scaled = [value * scale for value in values] if self._has_unscaled else values
        new_state = self._rule.next_state(state, is_finite, as_scaled)
        new_scale = self._rule.scale(new_state, step + 1)
        note = self._note_of_skipped(reduced)

        def update() -> tf.Tensor:
            if self._has_unscaled:
                return _after(self.apply_reduced(reduced))
            inverse = _inverse(scale)  # Exact for powers of two, and quicker than a division.
            return _after(self.apply_reduced([(scaled(g, inverse), v) for g, v in reduced]))

        def skip() -> tf.Tensor:
            numbers = [tf.cast(tensor, tf.float64) for tensor in (step + 1, scale, new_scale)]
            flags = [tf.cast(~_is_finite(value), tf.float64) for value in values]
            return _after(None if note is None else note(tf.stack([*numbers, *flags])))

        is_done = tf.cond(is_finite, update, skip)
        skipped, in_a_row = (variables[name].read_value() for name in _COUNTERS)
        new_in_a_row = tf.where(self._rule.is_lowest(state), in_a_row + 1, np.int64(0))
        new = {
            **new_state,
            "skipped_steps": tf.where(is_finite, skipped, skipped + 1),
            "skipped_in_a_row": tf.where(is_finite, np.int64(0), new_in_a_row),
        }

        def assign() -> tf.Operation:
            return tf.group(*(v1.assign(variables[name], one) for name, one in new.items()))

        with tf.control_dependencies([is_done, *new.values()]):  # All reads come first.
            return if_counted(assign)

    def _scale(self, variables: Mapping[str, Any]) -> tf.Tensor:
        state = {name: variables[name].read_value() for name in self._rule.first_state()}
        return self._rule.scale(state, _global_step())

    def _variables(self) -> dict[str, Any]:
        """Returns the variables of the present graph, which replicas share; makes them once."""
        with tf.init_scope():  # In a loop of steps, the graph around the loop.
            is_eager = tf.executing_eagerly()
            graph = None if is_eager else v1.get_default_graph()
        if graph not in self._state:
            first = {**self._rule.first_state(), **dict.fromkeys(_COUNTERS, np.int64(0))}
            self._state[graph] = {
                name: self._variable(name, value, is_eager) for name, value in first.items()
            }
        return self._state[graph]

    def _variable(self, name: str, value: Any, is_eager: bool) -> tf.Variable:
        name = f"loss_scale/{name}"
        if is_eager:
            with tf.init_scope(), tf.device(HOST):
                variable = tf.Variable(value, trainable=False, name=name)
            self._track_trackable(variable, name.replace("/", "_"))
            return variable
        with tf.name_scope(""), tf.device(HOST):
            return v1.Variable(value, trainable=False, name=name, use_resource=True)

    def _note_of_skipped(self, reduced: Pairs) -> Callable[[tf.Tensor], Any] | None:
        """Makes the variable about the last skipped step, and adds the scale to the graph's.

        Returns a function that assigns the variable; None outside of v1 graphs.
        """
        with tf.init_scope():
            if tf.executing_eagerly():
                return None
            graph = v1.get_default_graph()
        with tf.name_scope(""), tf.device(HOST):
            last_skipped = v1.Variable(
                np.zeros(3 + len(reduced)),
                trainable=False,
                name="loss_scale/last_skipped",
                collections=[v1.GraphKeys.LOCAL_VARIABLES],
                use_resource=True,
            )
        variables = self._variables()
        graph.add_to_collection(
            _LOSS_SCALES,
            LossScale(
                scale=lambda: self._scale(variables),
                skipped_steps=variables["skipped_steps"],
                skipped_in_a_row=variables["skipped_in_a_row"],
                last_skipped=last_skipped,
                names=[name_of(variable) for _, variable in reduced],
                settings=self._rule.describe(),
            ),
        )
        return lambda value: v1.assign(last_skipped, value).op


_COUNTERS = ("skipped_steps", "skipped_in_a_row")

# Optimizers of TensorFlow and Keras that scale the loss as well.
_OTHERS = (
    "LossScaleOptimizer",
    "LossScaleOptimizerV3",
    "MixedPrecisionLossScaleOptimizer",
)


def loss_scales_in(graph: tf.Graph) -> list[LossScale]:
    """Returns the loss scales of optimizers that update variables in a graph."""
    return list(graph.get_collection(_LOSS_SCALES))


def _global_step() -> tf.Tensor:
    """Returns the number of steps before this one, an int64 scalar; 0 without a global step."""
    step = v1.train.get_global_step()
    return tf.constant(0, tf.int64) if step is None else tf.cast(step.read_value(), tf.int64)


def _inverse(scale: tf.Tensor) -> tf.Tensor:
    """Returns 1 / scale in float64, for gradients in float64; a scalar."""
    return 1.0 / tf.cast(scale, tf.float64)


def _is_finite(tensor: tf.Tensor) -> tf.Tensor:
    return tf.reduce_all(tf.math.is_finite(tensor))


def _are_finite(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns whether all elements of all tensors are finite, a boolean scalar.

    A sum is finite only if all elements are, and reads them once without writing. Where it is not,
    each element is looked at, because a sum of large elements may overflow.
    """
    total = tf.add_n([tf.cast(tf.reduce_sum(tensor), tf.float32) for tensor in tensors])

    def look() -> tf.Tensor:
        return tf.reduce_all([_is_finite(tensor) for tensor in tensors])

    return tf.cond(tf.math.is_finite(total), lambda: tf.constant(True), look)


def _after(op: Any) -> tf.Tensor:
    """Returns a tensor that exists once an op has run; both branches of a condition return one."""
    with tf.control_dependencies([op] if isinstance(op, (tf.Tensor, tf.Operation)) else []):
        return tf.constant(True)
