"""LAMB: Adam's direction, scaled for each weight by a trust ratio."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.cluster.arguments import check_number
from tfdist.training.norms import norm
from tfdist.training.optimizers.adamw import AdamW
from tfdist.training.optimizers.rule_optimizer import read_handle, scratch_with


def trust_ratio(weight_norm: Any, step_norm: Any, max_weight_norm: float | None = None) -> Any:
    """Returns LAMB's ratio |w| / |r| as a scalar, with at most `max_weight_norm` for |w|.

    It is 1 if one of the norms is 0; r is direction and decay together.
    """
    if max_weight_norm is not None:
        weight_norm = tf.minimum(weight_norm, max_weight_norm)
    is_usable = tf.logical_and(weight_norm > 0.0, step_norm > 0.0)
    return tf.where(is_usable, weight_norm / step_norm, 1.0)


class LAMB(AdamW):
    """Layer-wise adaptive moments for large batches; a v1 optimizer.

    You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes", 2020,
    algorithm 2. With Adam's direction u of a weight w; r and u have w's shape, the ratio is a
    scalar:

        r = u + weight_decay w
        w' = w - rate min(|w|, max_weight_norm) / |r| r

    The ratio is 1 if |w| or |r| is 0. Its norms are of the whole batch's step, computed after
    the reduction, and bit-equal on all workers. A sparse gradient counts as a dense one: every row
    decays. Slots: `m`, `v`, float32.

    Examples:
      >>> weight = tf.Variable([3.0, 4.0])  # Of norm 5.
      >>> optimizer = training.LAMB(0.1)
      >>> optimizer.apply_gradients([(tf.constant([2.0, 7.0]), weight)])
      >>> print(f"{tf.norm(weight - [3.0, 4.0]):.3f}")  # Moved by the rate times the weight's norm.
      0.500

    The other arguments are as in `AdamW`.

    Args:
      learning_rate: A number, a tensor, or a schedule.
      beta_1: Decay of the first moment.
      beta_2: Decay of the second moment.
      epsilon: Added to the root of the second moment.
      bias_correction: Whether the moments are divided by 1 - beta^t.
      max_weight_norm: The largest norm of a weight that counts; None is no limit.
      exclude_from_layer_adaptation: Patterns on the names of variables with a ratio of 1. None
        takes those of `exclude_from_weight_decay`.
      stochastic_rounding: Whether weights in float16 or bfloat16 are rounded up or down by chance,
        which keeps small updates; False rounds to the nearest value.
      name: Prefix of the slots' names.

    Raises:
      TypeError: If patterns are not a list of strings.
      ValueError: If a number is out of range, or a pattern is not a regular expression.
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        weight_decay: float = 0.0,
        bias_correction: bool = True,
        max_weight_norm: float | None = None,
        exclude_from_weight_decay: Sequence[str] | None = None,
        exclude_from_layer_adaptation: Sequence[str] | None = None,
        stochastic_rounding: bool = True,
        name: str = "LAMB",
    ) -> None:
        super().__init__(
            learning_rate,
            beta_1,
            beta_2,
            epsilon,
            weight_decay,
            bias_correction,
            exclude_from_weight_decay,
            stochastic_rounding,
            name,
        )
        self._exclude_from_ratio(exclude_from_layer_adaptation)
        if max_weight_norm is not None:
            check_number("max_weight_norm", max_weight_norm, above=0)
        self._max_weight_norm = max_weight_norm

    def _update(
        self, variable: Any, weight: tf.Tensor, gradient: tf.Tensor, slots: Sequence[tf.Tensor]
    ) -> Any:
        """Updates with four passes over memory: decay, Adam's kernel, norms, subtraction."""
        dtype = gradient.dtype
        value = read_handle(weight, gradient)
        decay = tf.constant(self._decay_of(variable), dtype)
        scratch = scratch_with(decay * value)  # Adam's kernel can add to it.
        added = self._subtract_direction(scratch, -tf.ones([], dtype), gradient, slots)
        with tf.control_dependencies([added]):
            step = read_handle(scratch, gradient)
        ratio = tf.ones([], dtype)
        if not self._no_ratio.fit(variable):
            ratio = trust_ratio(norm(value), norm(step), self._max_weight_norm)
        factor = self.rate(dtype) * ratio  # []
        with tf.control_dependencies([factor]):
            return tf.raw_ops.ResourceApplyGradientDescent(var=weight, alpha=factor, delta=step)
