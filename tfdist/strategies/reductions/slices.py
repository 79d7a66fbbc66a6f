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


def is_large(value: Value, threshold_bytes: float) -> bool:
    """Returns whether a tensor has at least the bucketing threshold's size; slices never do."""
    if isinstance(value, tf.IndexedSlices):
        return False
    return bool((value.shape.num_elements() or 0) * value.dtype.size >= threshold_bytes)


def at_least_float32(tensor: tf.Tensor) -> tf.Tensor:
    """Returns a tensor in float32 if its dtype is smaller."""
    return tf.cast(tensor, tf.float32) if tensor.dtype.size < tf.float32.size else tensor


def scaled(value: Value, factor: float | tf.Tensor) -> Value:
    """Returns a value times a number or a scalar tensor, in the dtype of the value."""
    if isinstance(factor, float) and factor == 1.0:
        return value

    def times(tensor: tf.Tensor) -> tf.Tensor:
        if isinstance(factor, float):  # `tf.cast` takes a number through float32.
            return tensor * tf.constant(factor, tensor.dtype)
        return tensor * tf.cast(factor, tensor.dtype)

    return on_values(times, value)


def weighted(value: Value, weight: tf.Tensor) -> Value:
    """Returns a value times a weight, a scalar; 0 for a weight of 0, also where the value is NaN.

    Half-precision values become float32: their sums lose small ones, or overflow.
    """

    def times(tensor: tf.Tensor) -> tf.Tensor:
        tensor = at_least_float32(tensor)
        return tf.math.multiply_no_nan(tensor, tf.cast(weight, tensor.dtype))

    return on_values(times, value)


def add_equal_rows(slices: tf.IndexedSlices) -> tf.IndexedSlices:
    """Adds up the rows of equal index, so that each index stands once.

    Optimizers such as gradient descent update a variable by TensorFlow's scatter-add, which may add
    rows of equal index in any order if it has several threads. The sums of two workers then differ
    in their last bits. The sums here are in the order of the rows.

    Args:
      slices: Values [rows, ...] and indices [rows].

    Returns:
      Values [different_indices, ...] and indices [different_indices], in the order in which the
      indices first occur.
    """
    indices, position = tf.unique(slices.indices)  # [different_indices], [rows]
    values = tf.math.unsorted_segment_sum(slices.values, position, tf.size(indices))
    values.set_shape(tf.TensorShape([None]).concatenate(slices.values.shape[1:]))
    return tf.IndexedSlices(values, indices, slices.dense_shape)
