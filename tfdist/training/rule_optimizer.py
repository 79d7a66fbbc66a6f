"""RuleOptimizer: slots, dtypes and sparse gradients of the optimizers in this package.

An optimizer states its rule as a pure function of arrays. Slots and arithmetic are in float32
whatever a weight's dtype is (float64 for float64). A float32 weight may be updated in place by
TensorFlow's fused kernels instead, which compute the same and touch memory less often.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.strategies.placement import HOST
from tfdist.training.checks import check_rate
from tfdist.training.name_patterns import NamePatterns, name_of


class RuleOptimizer(v1.train.Optimizer):  # type: ignore[misc]
    """Base class: a v1 optimizer that is made from a rule.

    Args:
      learning_rate: A number, a tensor, or a function without arguments (a schedule).
      name: The prefix of the slots' names.
      patterns: The lists of patterns that the user gave; one that fits no variable is logged.

    Raises:
      ValueError: If the rate is a number that is negative or not finite.
    """

    _slot_names: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self, learning_rate: Any, name: str, patterns: Sequence[NamePatterns] = ()
    ) -> None:
        super().__init__(use_locking=False, name=name)
        self._learning_rate = check_rate(learning_rate)
        self._given_patterns = patterns
        self._rate: Any = None

    def _rule(
        self, variable: Any, weight: tf.Tensor, gradient: tf.Tensor, slots: Sequence[tf.Tensor]
    ) -> tuple[tf.Tensor, Sequence[tf.Tensor]]:
        """Returns the new weight and the new slots; all have the weight's shape."""
        raise NotImplementedError

    def _in_place(self, variable: Any, gradient: tf.Tensor, slots: Sequence[Any]) -> Any:
        """Returns the op that updates a variable and its slots; by the rule, if not overridden."""
        return self._by_rule(variable, gradient, slots)

    def rounded(self, weight: tf.Tensor, variable: Any) -> tf.Tensor:
        """Returns a new weight in the dtype of its variable, rounded to the nearest value."""
        return tf.cast(weight, variable.dtype.base_dtype)

    def rate(self, dtype: tf.DType) -> tf.Tensor:
        """Returns this step's learning rate, a scalar; while an update is built."""
        return tf.cast(self._rate, dtype)

    # What TensorFlow calls while it builds an update.

    def _create_slots(self, var_list: Sequence[Any]) -> None:
        for patterns in self._given_patterns:
            patterns.report_unused(var_list)
        for variable in var_list:
            for slot in self._slot_names:
                self._get_or_make_slot_with_initializer(
                    variable,
                    v1.zeros_initializer(),
                    variable.shape,
                    computed_in(variable),
                    slot,
                    f"{self.get_name()}/{slot}",
                )

    def _prepare(self) -> None:
        rate = self._learning_rate
        with tf.device(HOST):
            self._rate = tf.convert_to_tensor(rate() if callable(rate) else rate)  # []

    def _resource_apply_dense(self, grad: tf.Tensor, var: Any) -> Any:
        dtype = computed_in(var)
        slots = [self.get_slot(var, name) for name in self._slot_names]
        gradient = tf.cast(grad, dtype)  # [...], as the weight
        if var.dtype.base_dtype != dtype:
            return self._by_rule(var, gradient, slots)
        return self._in_place(var, gradient, slots)

    def _resource_apply_sparse_duplicate_indices(
        self, grad: tf.Tensor, var: Any, indices: tf.Tensor
    ) -> Any:
        # Rows without a gradient decay and keep their momentum, as if it had been 0.
        values = tf.cast(grad, computed_in(var))  # [rows, columns]
        dense = tf.math.unsorted_segment_sum(values, indices, var.shape[0])
        return self._resource_apply_dense(dense, var)

    def _apply_dense(self, grad: tf.Tensor, var: Any) -> Any:
        slots = [self.get_slot(var, name) for name in self._slot_names]
        return self._by_rule(var, tf.cast(grad, computed_in(var)), slots)

    def _apply_sparse_duplicate_indices(self, grad: tf.IndexedSlices, var: Any) -> Any:
        values = tf.cast(grad.values, computed_in(var))  # [rows, columns]
        dense = tf.math.unsorted_segment_sum(values, grad.indices, var.shape[0])
        return self._apply_dense(dense, var)

    def _by_rule(self, variable: Any, gradient: tf.Tensor, slots: Sequence[Any]) -> Any:
        weight = tf.cast(_read(variable), gradient.dtype)
        new_weight, new_slots = self._rule(variable, weight, gradient, [_read(s) for s in slots])
        with tf.control_dependencies([new_weight, *new_slots]):  # All reads come first.
            return tf.group(
                v1.assign(variable, self.rounded(new_weight, variable)),
                *(v1.assign(slot, new) for slot, new in zip(slots, new_slots, strict=True)),
                name=f"assign_{name_of(variable).replace('/', '_')}",
            )


def computed_in(variable: Any) -> tf.DType:
    """Returns the dtype of a variable's slots and arithmetic."""
    return tf.float64 if variable.dtype.base_dtype == tf.float64 else tf.float32


def _read(variable: Any) -> tf.Tensor:
    """Reads a variable where it is, not through its copy on the device."""
    return variable.read_value()
