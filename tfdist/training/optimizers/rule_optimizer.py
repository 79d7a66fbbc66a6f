"""RuleOptimizer: slots, dtypes and sparse gradients of the optimizers in this package.

An optimizer states its rule once, as an update of a weight and its slots in place: TensorFlow's
fused kernels touch memory less often than one op for each operation of the formula. Slots and
arithmetic are in float32 whatever a weight's dtype is (float64 for float64).

A weight in half precision is updated in a float32 copy and rounded stochastically, so that updates
below its precision are not lost. The random bits follow from (seed, variable, global step): equal
on all workers, in all layouts, and after a resume.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.cluster.arguments import check_flag, check_number
from tfdist.strategies.divided.variable import refuse_divided
from tfdist.strategies.placement import HOST
from tfdist.strategies.private_tensorflow import anonymous_name
from tfdist.training.half_precision import computed_in, in_float32, is_half
from tfdist.training.name_patterns import NamePatterns, name_of
from tfdist.training.schedules import check_rate, rate_in_float64
from tfdist.training.stochastic_rounding import (
    is_stochastic_rounding_enabled,
    stochastic_round,
)

# The variable with the seed of stochastic rounding.
_SEED = "stochastic_rounding_seed"


class RuleOptimizer(v1.train.Optimizer):  # type: ignore[misc]
    """Base class: a v1 optimizer that is made from a rule.

    The learning rate is a number, a tensor, or a function without arguments (a schedule). Variables
    that a pattern fits do not decay, and have no trust ratio; a pattern that fits none is logged
    once. Weights in half precision are rounded up or down by chance, or with
    `stochastic_rounding=False` to the nearest value.

    Raises:
      TypeError: If the patterns are not a list of strings.
      ValueError: If the rate or the decay is a number that is negative or not finite.
    """

    _slot_names: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        learning_rate: Any,
        name: str,
        stochastic_rounding: bool,
        weight_decay: float = 0.0,
        exclude_from_weight_decay: Sequence[str] | None = None,
    ) -> None:
        super().__init__(use_locking=False, name=name)
        self._learning_rate = check_rate(learning_rate)
        self._weight_decay = check_number("weight_decay", weight_decay)
        self._no_decay = NamePatterns("exclude_from_weight_decay", exclude_from_weight_decay)
        self._no_ratio = self._no_decay
        self._dtypes: list[tf.DType] = []  # of the arithmetic of the variables to update
        self._rates: dict[tf.DType, tf.Tensor] = {}
        self._stochastic_rounding = check_flag("stochastic_rounding", stochastic_rounding)

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, Any]],
        global_step: Any = None,
        name: str | None = None,
        skip_gradients_aggregation: bool = False,
    ) -> Any:
        """Updates the variables; gradients in half precision are added up in float32.

        A collective under a strategy, as in every optimizer of `tf.compat.v1.train`.
        """
        pairs = [(in_float32(gradient), variable) for gradient, variable in grads_and_vars]
        refuse_divided(type(self).__name__, [variable for _, variable in pairs])
        return super().apply_gradients(pairs, global_step, name, skip_gradients_aggregation)

    def _update(
        self, variable: Any, weight: tf.Tensor, gradient: tf.Tensor, slots: Sequence[tf.Tensor]
    ) -> Any:
        """Returns the op that updates a weight and its slots in place.

        `weight` is a handle in float32 (float64): that of the variable, or of a copy. The gradient
        has its shape and dtype; `slots` are handles in the order of `_slot_names`.
        """
        raise NotImplementedError

    def _exclude_from_ratio(self, patterns: Sequence[str] | None) -> None:
        if patterns is not None:
            self._no_ratio = NamePatterns("exclude_from_layer_adaptation", patterns)

    def _decay_of(self, variable: Any) -> float:
        return 0.0 if self._no_decay.fit(variable) else self._weight_decay

    @property
    def _rounds_stochastically(self) -> bool:
        return self._stochastic_rounding and is_stochastic_rounding_enabled()

    def rounded(self, weight: tf.Tensor, variable: Any) -> tf.Tensor:
        """Returns a new weight, of float32, in the dtype of its variable."""
        dtype = variable.dtype.base_dtype
        if not (self._rounds_stochastically and is_half(variable)):
            return tf.cast(weight, dtype)
        own = zlib.crc32(name_of(variable).encode()) << 31
        seed = tf.bitwise.bitwise_xor(self._own_variable(_SEED).read_value(), np.int64(own))  # []
        step = v1.train.get_global_step().read_value()  # []
        return stochastic_round(weight, dtype, tf.stack([seed, tf.cast(step, tf.int64)]))

    def rate(self, dtype: tf.DType) -> tf.Tensor:
        """Returns this step's learning rate, a scalar; while an update is built."""
        return self._rates[dtype]

    # What TensorFlow calls while it builds an update.

    def _create_slots(self, var_list: Sequence[Any]) -> None:
        self._dtypes = list(dict.fromkeys(map(computed_in, var_list)))
        for patterns in (self._no_decay, self._no_ratio):
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
        halves = [variable for variable in var_list if is_half(variable)]
        if halves and self._rounds_stochastically:
            if v1.train.get_global_step() is None:
                raise ValueError(
                    f"{name_of(halves[0])} is rounded with random bits of the global step, and "
                    "this graph has none. Call tf.compat.v1.train.create_global_step(), or set "
                    "stochastic_rounding=False."
                )
            # A variable, so that all workers have worker 0's seed, and a resumed run its first one.
            seed = np.int64(v1.get_default_graph().seed or 0)
            self._create_non_slot_variable(seed, _SEED, min(halves, key=name_of))

    def _own_variable(self, name: str) -> Any:
        """Returns a variable of the optimizer that belongs to no weight."""
        with tf.init_scope():  # In a loop of steps, the graph around the loop.
            graph = None if tf.executing_eagerly() else v1.get_default_graph()
        return self._get_non_slot_variable(name, graph)

    def _prepare(self) -> None:
        # Scalars of all variables are made once: a graph of many variables is built sooner.
        with tf.device(HOST):
            rate = rate_in_float64(self._learning_rate)  # []
            self._rates = {dtype: tf.cast(rate, dtype) for dtype in self._dtypes}

    def _resource_apply_dense(self, grad: tf.Tensor, var: Any) -> Any:
        dtype = computed_in(var)
        gradient = tf.cast(grad, dtype)  # [...], as the weight
        slots = [self.get_slot(var, name).handle for name in self._slot_names]
        if var.dtype.base_dtype == dtype:
            return self._update(var, var.handle, gradient, slots)
        copy = scratch_with(_read_as(dtype, var))
        with tf.control_dependencies([self._update(var, copy, gradient, slots)]):
            return v1.assign(var, self.rounded(read_handle(copy, gradient), var)).op

    def _resource_apply_sparse_duplicate_indices(
        self, grad: tf.Tensor, var: Any, indices: tf.Tensor
    ) -> Any:
        # Rows without a gradient decay and keep their momentum, as if it had been 0.
        values = tf.cast(grad, computed_in(var))  # [rows, columns]
        dense = tf.math.unsorted_segment_sum(values, indices, var.shape[0])
        return self._resource_apply_dense(dense, var)

    def _apply_dense(self, grad: tf.Tensor, var: Any) -> Any:
        """Updates a variable that is no resource, and its slots, by way of copies."""
        gradient = tf.cast(grad, computed_in(var))
        variables = [var, *(self.get_slot(var, name) for name in self._slot_names)]
        copies = [scratch_with(_read_as(gradient.dtype, variable)) for variable in variables]
        with tf.control_dependencies([self._update(var, copies[0], gradient, copies[1:])]):
            values = [read_handle(copy, gradient) for copy in copies]
        assigned = zip(variables, values, strict=True)
        return tf.group(*(v1.assign(one, self.rounded(value, one)) for one, value in assigned))

    def _apply_sparse_duplicate_indices(self, grad: tf.IndexedSlices, var: Any) -> Any:
        values = tf.cast(grad.values, computed_in(var))  # [rows, columns]
        dense = tf.math.unsorted_segment_sum(values, grad.indices, var.shape[0])
        return self._apply_dense(dense, var)


def scratch_with(value: tf.Tensor) -> tf.Tensor:
    """Returns the handle of a variable that takes over a tensor's memory; freed after its use."""
    handle = tf.raw_ops.VarHandleOp(
        dtype=value.dtype, shape=value.shape, shared_name=anonymous_name()
    )
    with tf.control_dependencies([tf.raw_ops.AssignVariableOp(resource=handle, value=value)]):
        return tf.identity(handle)


def read_handle(handle: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """Returns the value of a variable, of the shape and dtype of another tensor."""
    value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=like.dtype)
    value.set_shape(like.shape)
    return value


def _read_as(dtype: tf.DType, variable: Any) -> tf.Tensor:
    """Reads a variable where it is, not through its copy on the device."""
    return tf.cast(variable.read_value(), dtype)
