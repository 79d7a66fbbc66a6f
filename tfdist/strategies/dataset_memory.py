"""Datasets whose tensors have memory of their own, rather than that of a program's NumPy arrays.

TensorFlow takes an aligned array's memory for the tensor. An operation that is the last one to read
a slice of it computes in place: the labels of the program would be differences from the second
epoch on. Slices come of batches that are divided.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.strategies.private_runtime import yields_arrays_of_python


def with_own_memory(dataset: Any, source: Any = None) -> Any:
    """Returns a dataset whose tensors are not the arrays of a program's Python code.

    Args:
      dataset: The dataset.
      source: The dataset of which it is a copy, and which tells whether it calls Python; None if
        it tells that itself.
    """
    if not yields_arrays_of_python(dataset if source is None else source):
        return dataset
    return mapped(dataset, copied)


def mapped(dataset: Any, function: Callable[[Any], Any]) -> Any:
    """Returns a dataset with a function of each tensor of an element."""
    is_tuple = isinstance(dataset.element_spec, tuple)  # Its members are the arguments.

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def of_element(*batch: Any) -> Any:
        return tf.nest.map_structure(function, batch if is_tuple else batch[0])

    return dataset.map(of_element)


def copied(tensor: Any) -> Any:
    """Returns a tensor with memory of its own; a text, and a value of another kind, as it is."""
    is_dense = isinstance(tensor, tf.Tensor) and tensor.dtype.is_numpy_compatible
    return tf.raw_ops.DeepCopy(x=tensor) if is_dense and tensor.dtype != tf.string else tensor
