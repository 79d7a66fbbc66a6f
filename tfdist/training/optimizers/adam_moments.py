"""AdamMoments: the moments m and v of Adam, which AdamW and LAMB share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.cluster.arguments import check_flag, check_number
from tfdist.strategies.placement import HOST
from tfdist.training.half_precision import computed_in
from tfdist.training.name_patterns import NamePatterns, name_of
from tfdist.training.optimizers.rule_optimizer import RuleOptimizer

_POWERS = ("beta1_power", "beta2_power")  # Variables of the optimizer.


class AdamMoments(RuleOptimizer):
    """Base class of optimizers with slots `m` and `v`, and with the powers of the betas.

    Kingma and Ba, "Adam: A Method for Stochastic Optimization", 2015, algorithm 1. With the
    gradient g, all of the weight's shape, Adam's direction is u:

        m' = beta_1 m + (1 - beta_1) g          v' = beta_2 v + (1 - beta_2) g^2
        u = m' / (1 - beta_1^t) / (sqrt(v' / (1 - beta_2^t)) + epsilon)
    """

    _slot_names = ("m", "v")

    def __init__(
        self,
        learning_rate: Any,
        *,
        beta_1: float,
        beta_2: float,
        epsilon: float,
        bias_correction: bool,
        patterns: Sequence[NamePatterns],
        stochastic_rounding: bool,
        name: str,
    ) -> None:
        super().__init__(learning_rate, name, patterns, stochastic_rounding)
        self._betas = (
            check_number("beta_1", beta_1, below=1),
            check_number("beta_2", beta_2, below=1),
        )
        self._epsilon = check_number("epsilon", epsilon)
        self._bias_correction = check_flag("bias_correction", bias_correction)
        self._scalars: dict[tf.DType, dict[str, tf.Tensor]] = {}

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

    # The powers are variables, as those of TensorFlow's Adam, so that a checkpoint has them.

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
