"""Functions of gradients of both kinds: tensors, and `tf.IndexedSlices` with some rows of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import tensorflow as tf

Value: TypeAlias = "tf.Tensor | tf.IndexedSlices"


def values_of(value: Value) -> tf.Tensor:
    """Returns a tensor itself, or the rows of slices."""
    return value.values if isinstance(value, tf.IndexedSlices) else value


def on_values(function: Callable[[tf.Tensor], tf.Tensor], value: Value) -> Value:
    """Returns the function of a tensor, or slices with the function of their rows."""
    if isinstance(value, tf.IndexedSlices):
        return tf.IndexedSlices(function(value.values), value.indices, value.dense_shape)
    return function(value)


def at_least_float32(tensor: tf.Tensor) -> tf.Tensor:
    """Returns a tensor in float32 if its dtype is smaller."""
    return tf.cast(tensor, tf.float32) if tensor.dtype.size < tf.float32.size else tensor


def scaled(value: Value, factor: float | tf.Tensor) -> Value:
    """Returns a value times a number or a scalar tensor, in the dtype of the value."""
    if isinstance(factor, float) and factor == 1.0:
        return value
    return on_values(lambda tensor: tensor * tf.cast(factor, tensor.dtype), value)


def weighted(value: Value, weight: tf.Tensor) -> Value:
    """Returns a value times a weight, a scalar; 0 for a weight of 0, also where the value is NaN.

    Half-precision values become float32: their sums lose small ones, or overflow.
    """

    def times(tensor: tf.Tensor) -> tf.Tensor:
        tensor = at_least_float32(tensor)
        return tf.math.multiply_no_nan(tensor, tf.cast(weight, tensor.dtype))

    return on_values(times, value)
