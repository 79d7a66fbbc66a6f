"""Norms with the same bits on every worker that has the same values.

TensorFlow's full reductions split a large tensor by the number of threads of the process, so that
two workers with different numbers of cores get sums that differ in the last bits. Here a tensor is
cut into rows of a fixed length; one thread reduces a row, in one order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.strategies.reductions.slices import at_least_float32, values_of

# Elements of a row. Below TensorFlow's cost of a second thread, and long enough for the CPU's
# vector units.
_ROW = 4096


def norm(tensor: Any) -> tf.Tensor:
    """Returns the Euclidean norm of a tensor of any shape, a scalar of its dtype."""
    flat = tf.reshape(tensor, [-1])  # [elements]
    if flat.shape.num_elements() is None:  # Twice, which is enough for 2^36 elements.
        flat = _norms_of_rows(_norms_of_rows(flat))
    while (flat.shape.num_elements() or 0) > _ROW:
        flat = _norms_of_rows(flat)
    return tf.math.reduce_euclidean_norm(flat)


def global_norm(tensors: Sequence[Any]) -> tf.Tensor:
    """Returns the norm of all tensors as one vector, a float32 scalar (float64 if one is).

    Rows of equal index in `tf.IndexedSlices` must have been added up.
    """
    values = [values_of(tensor) for tensor in tensors]
    dtype = tf.float64 if any(value.dtype == tf.float64 for value in values) else tf.float32
    norms = [tf.cast(norm(at_least_float32(value)), dtype) for value in values]
    return norm(tf.stack(norms))


def _norms_of_rows(flat: tf.Tensor) -> tf.Tensor:
    """Returns [elements / row, rounded up]: the norm of each row; the last one may be shorter."""
    size = flat.shape.num_elements()
    whole = (tf.size(flat) if size is None else size) // _ROW * _ROW
    rows = tf.math.reduce_euclidean_norm(tf.reshape(flat[:whole], [-1, _ROW]), axis=1)
    if size == whole:
        return rows
    return tf.concat([rows, [tf.math.reduce_euclidean_norm(flat[whole:])]], axis=0)
