"""Adding up and scaling gradients, which are tensors or rows of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


def added(parts: Sequence[Any]) -> Any:
    """Adds up tensors and `tf.IndexedSlices` of one shape; several slices stay slices."""
    dense = [part for part in parts if not isinstance(part, tf.IndexedSlices)]
    sparse = [part for part in parts if isinstance(part, tf.IndexedSlices)]
    if not sparse:
        return dense[0] if len(dense) == 1 else tf.add_n(dense)
    rows = tf.concat([part.values for part in sparse], 0)
    indices = tf.concat([part.indices for part in sparse], 0)
    if not dense:
        return tf.IndexedSlices(rows, indices, sparse[0].dense_shape)
    return tf.tensor_scatter_nd_add(added(dense), indices[:, None], rows)


def scaled(gradient: Any, factor: float) -> Any:
    """Multiplies a tensor or `tf.IndexedSlices` by a number."""
    if factor == 1.0:
        return gradient
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(
            gradient.values * tf.cast(factor, gradient.values.dtype),
            gradient.indices,
            gradient.dense_shape,
        )
    return gradient * tf.cast(factor, gradient.dtype)
