"""AdamW: Adam with decoupled weight decay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.cluster.arguments import check_number
from tfdist.training.name_patterns import NamePatterns
from tfdist.training.optimizers.adam_moments import AdamMoments
from tfdist.training.optimizers.rule_optimizer import read_handle


class AdamW(AdamMoments):
    """Adam with weight decay that does not pass through the moments; a v1 optimizer.

    Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019, algorithm 2, with the rate
    in front of the decay as in BERT. With Adam's direction u of a weight w, both of w's shape:

        w' = w - rate (u + weight_decay w)

    A sparse gradient counts as a dense one: every row decays. Slots: `m`, `v`, float32.

    Examples:
      >>> weight, bias = tf.Variable([2.0], name="kernel"), tf.Variable([2.0], name="bias")
      >>> optimizer = training.AdamW(0.1, weight_decay=0.5, exclude_from_weight_decay=["bias"])
      >>> optimizer.apply_gradients([(tf.constant([3.0]), one) for one in (weight, bias)])
      >>> print(f"{float(weight[0]):.2f} {float(bias[0]):.2f}")  # The first direction is 1.
      1.80 1.90

    Args:
      learning_rate: A number, a tensor, or a schedule.
      beta_1: Decay of the first moment.
      beta_2: Decay of the second moment.
      epsilon: Added to the root of the second moment.
      weight_decay: See above.
      bias_correction: Whether the moments are divided by 1 - beta^t.
      exclude_from_weight_decay: Patterns (`re.search`) on the names of variables that do not decay.
      stochastic_rounding: Whether weights in float16 or bfloat16 are rounded up or down by chance,
        which keeps small updates; False rounds to the nearest value.
      name: Prefix of the slots' names.

    Raises:
      TypeError: If the patterns are not a list of strings.
      ValueError: If a number is out of range, or a pattern is not a regular expression.
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        weight_decay: float = 0.01,
        bias_correction: bool = True,
        exclude_from_weight_decay: Sequence[str] | None = None,
        stochastic_rounding: bool = True,
        name: str = "AdamW",
    ) -> None:
        self._no_decay = NamePatterns("exclude_from_weight_decay", exclude_from_weight_decay)
        super().__init__(
            learning_rate,
            beta_1=beta_1,
            beta_2=beta_2,
            epsilon=epsilon,
            bias_correction=bias_correction,
            patterns=[self._no_decay],
            stochastic_rounding=stochastic_rounding,
            name=name,
        )
        self._weight_decay = check_number("weight_decay", weight_decay)

    def _update(
        self, variable: Any, weight: tf.Tensor, gradient: tf.Tensor, slots: Sequence[tf.Tensor]
    ) -> Any:
        rate = self.rate(gradient.dtype)
        decay = 0.0 if self._no_decay.fit(variable) else self._weight_decay
        decayed = []
        if decay:  # First, since the direction does not depend on the weight.
            value = rate * decay * read_handle(weight, gradient)
            decayed = [tf.raw_ops.AssignSubVariableOp(resource=weight, value=value)]
        with tf.control_dependencies(decayed):
            return self._subtract_direction(weight, rate, gradient, slots)
