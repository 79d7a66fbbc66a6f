"""LARS: momentum with a rate that is scaled for each weight by a trust ratio."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.cluster.arguments import check_flag, check_number
from tfdist.training.norms import norm
from tfdist.training.optimizers.rule_optimizer import RuleOptimizer, read_handle


def lars_ratio(weight_norm: Any, divisor: Any, eeta: float) -> Any:
    """Returns eeta |w| / divisor as a scalar; 1 if |w| or the divisor is 0."""
    is_usable = tf.logical_and(weight_norm > 0.0, divisor > 0.0)
    return tf.where(is_usable, eeta * weight_norm / divisor, 1.0)


class LARS(RuleOptimizer):
    """Layer-wise adaptive rate scaling for large batches; a v1 optimizer.

    You, Gitman and Ginsburg, "Large Batch Training of Convolutional Networks", 2017, algorithm 1.
    The gradient g, weight w and momentum n have one shape, the ratio is a scalar:

        d = g + weight_decay w
        classic:      n' = momentum n + rate ratio d,   w' = w - n'
                      ratio = eeta |w| / (|g| + weight_decay |w| + epsilon)
        not classic:  n' = momentum n + d,              w' = w - rate ratio n'
                      ratio = eeta |w| / (|n'| + epsilon)

    With nesterov the weight moves by momentum n' + (what was added to n) in place of n'. The ratio
    is 1 if |w| is 0, or |g| (|n'|) is 0. It is computed after the reduction and bit-equal on all
    workers. A sparse gradient counts as a dense one. Slot: `momentum`, float32.

    Examples:
      >>> weight = tf.Variable([3.0, 4.0])  # Of norm 5.
      >>> optimizer = training.LARS(1.0, eeta=0.001)
      >>> optimizer.apply_gradients([(tf.constant([0.0, 70.0]), weight)])
      >>> weight.numpy()  # Moved by eeta times the weight's norm.
      array([3.   , 3.995], dtype=float32)

    `momentum`, `weight_decay`, `eeta`, `epsilon` and `nesterov` are those above. The others are
    those of `LAMB`.

    Args:
      learning_rate: A number, a tensor, or a schedule.
      classic_momentum: Whether the rate applies before the momentum.
      exclude_from_weight_decay: Patterns (`re.search`) on the names of variables that do not decay.
      exclude_from_layer_adaptation: Patterns on the names of variables whose ratio is 1. None takes
        those of `exclude_from_weight_decay`.
      stochastic_rounding: Whether weights in float16 or bfloat16 are rounded up or down by chance,
        which keeps small updates; False rounds to the nearest value.
      name: Prefix of the slots' names.

    Raises:
      TypeError: If patterns are not a list of strings.
      ValueError: If a number is out of range, or a pattern is not a regular expression.
    """

    _slot_names = ("momentum",)

    def __init__(
        self,
        learning_rate: Any = 0.01,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        eeta: float = 0.001,
        epsilon: float = 0.0,
        nesterov: bool = False,
        classic_momentum: bool = True,
        exclude_from_weight_decay: Sequence[str] | None = None,
        exclude_from_layer_adaptation: Sequence[str] | None = None,
        stochastic_rounding: bool = True,
        name: str = "LARS",
    ) -> None:
        super().__init__(
            learning_rate, name, stochastic_rounding, weight_decay, exclude_from_weight_decay
        )
        self._exclude_from_ratio(exclude_from_layer_adaptation)
        self._momentum = check_number("momentum", momentum, below=1)
        self._eeta = check_number("eeta", eeta, above=0)
        self._epsilon = check_number("epsilon", epsilon)
        self._nesterov = check_flag("nesterov", nesterov)
        self._classic = check_flag("classic_momentum", classic_momentum)

    def _update(
        self, variable: Any, weight: tf.Tensor, gradient: tf.Tensor, slots: Sequence[tf.Tensor]
    ) -> Any:
        decay = self._decay_of(variable)
        rate = self.rate(gradient.dtype)
        value, before = read_handle(weight, gradient), read_handle(slots[0], gradient)
        added = gradient + decay * value
        if self._classic:
            ratio = self._ratio(variable, value, gradient, decay)
            added = rate * ratio * added
        momentum = self._momentum * before + added
        step = self._momentum * momentum + added if self._nesterov else momentum
        if not self._classic:
            step = rate * self._ratio(variable, value, step, 0.0) * step
        new = value - step
        with tf.control_dependencies([new, momentum]):  # All reads come first.
            return tf.group(
                tf.raw_ops.AssignVariableOp(resource=weight, value=new),
                tf.raw_ops.AssignVariableOp(resource=slots[0], value=momentum),
            )

    def _ratio(self, variable: Any, weight: tf.Tensor, step: tf.Tensor, decay: float) -> Any:
        if self._no_ratio.fit(variable):
            return tf.ones([], step.dtype)
        weight_norm, step_norm = norm(weight), norm(step)
        divisor = step_norm + decay * weight_norm + self._epsilon
        return lars_ratio(weight_norm, tf.where(step_norm > 0.0, divisor, 0.0), self._eeta)
