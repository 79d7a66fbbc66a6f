"""SGD: gradient descent, with momentum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.cluster.arguments import check_flag, check_number
from tfdist.training.optimizers.rule_optimizer import RuleOptimizer


class SGD(RuleOptimizer):
    """Gradient descent with momentum; a v1 optimizer.

    Sutskever et al., "On the importance of initialization and momentum in deep learning", 2013. The
    gradient g, weight w and momentum n have one shape:

        n' = momentum n + g,   w' = w - rate n'     nesterov:   w' = w - rate (g + momentum n')

    A sparse gradient counts as a dense one. Slot: `momentum`, float32; none without momentum.

    Examples:
      >>> weight = tf.Variable([3.0, 4.0])
      >>> optimizer = training.SGD(0.5, momentum=0.9)
      >>> for _ in range(2):
      ...     optimizer.apply_gradients([(tf.constant([1.0, 0.0]), weight)])
      >>> weight.numpy()
      array([1.55, 4.  ], dtype=float32)

    The other arguments are as in `AdamW`.

    Args:
      learning_rate: A number, a tensor, or a schedule.
      momentum: See above; 0 is plain gradient descent.
      nesterov: See above.
      stochastic_rounding: Whether weights in float16 or bfloat16 are rounded up or down by chance,
        which keeps small updates; False rounds to the nearest value.
      name: Prefix of the slots' names.

    Raises:
      ValueError: If a number is out of range, or nesterov is used without momentum.
    """

    def __init__(
        self,
        learning_rate: Any = 0.01,
        momentum: float = 0.0,
        nesterov: bool = False,
        stochastic_rounding: bool = True,
        name: str = "SGD",
    ) -> None:
        super().__init__(learning_rate, name, stochastic_rounding)
        self._momentum = check_number("momentum", momentum, below=1)
        self._nesterov = check_flag("nesterov", nesterov)
        if nesterov and not momentum:
            raise ValueError("nesterov=True needs a momentum above 0, got 0. Set momentum to 0.9.")
        if momentum:
            self._slot_names = ("momentum",)  # type: ignore[misc]

    def _update(
        self, variable: Any, weight: tf.Tensor, gradient: tf.Tensor, slots: Sequence[tf.Tensor]
    ) -> Any:
        rate = self.rate(gradient.dtype)
        if not slots:
            return tf.raw_ops.ResourceApplyGradientDescent(var=weight, alpha=rate, delta=gradient)
        return tf.raw_ops.ResourceApplyMomentum(
            var=weight,
            accum=slots[0],
            lr=rate,
            grad=gradient,
            momentum=tf.constant(self._momentum, gradient.dtype),
            use_nesterov=self._nesterov,
        )
