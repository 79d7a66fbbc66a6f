"""AdamW: Adam with decoupled weight decay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.cluster.arguments import check_flag, check_number
from tfdist.strategies.placement import HOST
from tfdist.training.half_precision import computed_in
from tfdist.training.name_patterns import name_of
from tfdist.training.optimizers.rule_optimizer import RuleOptimizer, read_handle

_POWERS = ("beta1_power", "beta2_power")  # Variables of the optimizer.


class AdamW(RuleOptimizer):
    """Adam with weight decay that does not pass through the moments; a v1 optimizer.

    Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019, algorithm 2, with the rate
    in front of the decay as in BERT. Adam's direction u is from Kingma and Ba, "Adam: A Method
    for Stochastic Optimization", 2015, algorithm 1. With the gradient g of a weight w, all of w's
    shape:

        m' = beta_1 m + (1 - beta_1) g          v' = beta_2 v + (1 - beta_2) g^2
        u = m' / (1 - beta_1^t) / (sqrt(v' / (1 - beta_2^t)) + epsilon)
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

    _slot_names = ("m", "v")

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
        super().__init__(
            learning_rate, name, stochastic_rounding, weight_decay, exclude_from_weight_decay
        )
        self._betas = (
            check_number("beta_1", beta_1, below=1),
            check_number("beta_2", beta_2, below=1),
        )
        self._epsilon = check_number("epsilon", epsilon)
        self._bias_correction = check_flag("bias_correction", bias_correction)
        self._scalars: dict[tf.DType, dict[str, tf.Tensor]] = {}

    def _update(
        self, variable: Any, weight: tf.Tensor, gradient: tf.Tensor, slots: Sequence[tf.Tensor]
    ) -> Any:
        rate = self.rate(gradient.dtype)
        decay = self._decay_of(variable)
        decayed = []
        if decay:
            # Before the direction, which does not depend on the weight, and after the gradient:
            # a graph may otherwise decay a weight that its forward pass has yet to read.
            share = rate * decay  # []
            with tf.control_dependencies([gradient]):
                value = share * read_handle(weight, gradient)
                decayed = [tf.raw_ops.AssignSubVariableOp(resource=weight, value=value)]
        with tf.control_dependencies(decayed):
            return self._subtract_direction(weight, rate, gradient, slots)

    def _subtract_direction(
        self, target: tf.Tensor, rate: tf.Tensor, gradient: tf.Tensor, slots: Sequence[tf.Tensor]
    ) -> Any:
        """Subtracts rate x u from the variable of a handle, and updates the moments, in one kernel.

        The kernel's epsilon is added to the root of the uncorrected v.
        """
        scalars = self._scalars[gradient.dtype]
        return tf.raw_ops.ResourceApplyAdam(
            var=target, m=slots[0], v=slots[1], lr=rate, grad=gradient, **scalars
        )

    def _prepare(self) -> None:
        super()._prepare()
        with tf.device(HOST):
            self._scalars = {dtype: self._scalars_in(dtype) for dtype in self._dtypes}

    def _scalars_in(self, dtype: tf.DType) -> dict[str, tf.Tensor]:
        """Returns the kernel's scalars that all variables share, by argument."""
        power_1, power_2 = self._powers(dtype)
        return {
            "beta1_power": power_1,
            "beta2_power": power_2,
            "beta1": tf.constant(self._betas[0], dtype),
            "beta2": tf.constant(self._betas[1], dtype),
            "epsilon": self._epsilon * tf.sqrt(1.0 - power_2),
        }

    # The powers are variables, as in TensorFlow's Adam, so that a checkpoint has them.

    def _create_slots(self, var_list: Sequence[Any]) -> None:
        super()._create_slots(var_list)
        if self._bias_correction:
            first = min(var_list, key=name_of)
            has_float64 = any(computed_in(variable) == tf.float64 for variable in var_list)
            dtype = np.float64 if has_float64 else np.float32
            for name, beta in zip(_POWERS, self._betas, strict=True):
                self._create_non_slot_variable(dtype(beta), name, first)

    def _powers(self, dtype: tf.DType) -> list[tf.Tensor]:
        if not self._bias_correction:
            return [tf.zeros([], dtype)] * 2
        return [tf.cast(self._own_variable(name).read_value(), dtype) for name in _POWERS]

    def _finish(self, update_ops: Sequence[Any], name_scope: str) -> Any:
        if not self._bias_correction:
            return tf.group(*update_ops, name=name_scope)
        with tf.control_dependencies(update_ops), tf.device(HOST):
            powers = zip(map(self._own_variable, _POWERS), self._betas, strict=True)
            products = [power.assign(power.read_value() * beta) for power, beta in powers]
        return tf.group(*update_ops, *products, name=name_scope)
