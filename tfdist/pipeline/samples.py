"""Samples of a DataLoader: arrays, sequences, and datasets of single samples.

Samples are read and batched on the host.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from tfdist.strategies.placement import HOST

_BATCHES_AHEAD = 2


class Samples(Protocol):
    """Samples that can be read by their numbers, from any thread."""

    def __len__(self) -> int: ...

    def read(self, numbers: range | np.ndarray) -> Any:
        """Returns the samples with these numbers in the structure of a sample.

        They are eager tensors on the host, [samples, ...] each.
        """


class ArraySamples:
    """Samples along the first dimension of arrays, [samples, ...] each.

    It takes a NumPy array or an eager tensor, or a tuple or dict of these, which may be nested.

    Raises:
      TypeError: If a value is not an array, or has no dimensions.
      ValueError: If there is no array, or the arrays have different numbers of samples.
    """

    def __init__(self, arrays: Any) -> None:
        leaves = tf.nest.flatten(arrays)
        for leaf in leaves:
            if not isinstance(leaf, (np.ndarray, tf.Tensor)) or not leaf.ndim:
                what = "one without dimensions" if hasattr(leaf, "ndim") else type(leaf).__name__
                raise TypeError(
                    f"the dataset's arrays must have samples along their first dimension, got "
                    f"{what}. Write numpy.asarray(values), or give a list of samples."
                )
        lengths = [len(leaf) for leaf in leaves]
        if len(set(lengths)) != 1:
            found = " and ".join(map(str, lengths)) or "none"
            raise ValueError(
                f"the dataset's arrays must have as many samples each, got {found}. Give arrays "
                "with equal first dimensions."
            )
        self._arrays = tf.nest.map_structure(np.asarray, arrays)
        self._length = lengths[0]

    def __len__(self) -> int:
        return self._length

    def read(self, numbers: range | np.ndarray) -> Any:
        # A slice is a view of the array: the only copy is the one into the tensor.
        which = slice(numbers.start, numbers.stop) if isinstance(numbers, range) else numbers
        with tf.device(HOST):
            # [samples, ...]
            return tf.nest.map_structure(lambda one: tf.convert_to_tensor(one[which]), self._arrays)


class SampleSequence:
    """Samples that an object returns one by one: `dataset[i]`, for i below `len(dataset)`.

    A sample is a number, an array or a tensor, or a structure of these. Python's numbers become
    int32 and float32, as everywhere in TensorFlow.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def read(self, numbers: range | np.ndarray) -> Any:
        indices = [int(number) for number in numbers]
        samples = [self._dataset[index] for index in indices]
        _check_structures(indices, samples)
        columns = zip(*(tf.nest.flatten(sample) for sample in samples), strict=True)
        with tf.device(HOST):
            stacked = [_stack(indices, values) for values in columns]  # [samples, ...] each
        return tf.nest.pack_sequence_as(samples[0], stacked)


def find_samples(dataset: Any) -> Samples:
    """Returns the samples of a dataset that is no `tf.data.Dataset`.

    Raises:
      TypeError: If it is neither arrays nor an object with `__len__` and `__getitem__`.
      ValueError: As for `ArraySamples`.
    """
    if isinstance(dataset, (np.ndarray, tf.Tensor, tuple, Mapping)):
        return ArraySamples(dataset)
    if hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__"):
        return SampleSequence(dataset)
    raise TypeError(
        "dataset must be arrays (one, a tuple or a dict), an object with __len__ and __getitem__, "
        f"or a tf.data.Dataset, got {type(dataset).__name__}. Make one of a generator with "
        "tf.data.Dataset.from_generator."
    )


def _check_structures(indices: Sequence[int], samples: Sequence[Any]) -> None:
    for index, sample in zip(indices, samples, strict=True):
        try:
            tf.nest.assert_same_structure(samples[0], sample)
        except (TypeError, ValueError):
            raise ValueError(
                f"samples do not stack: sample {index} is {_outline(sample)} and sample "
                f"{indices[0]} is {_outline(samples[0])}. Give every sample the same structure."
            ) from None


def _outline(structure: Any) -> str:
    """Returns a structure with the types of its values, for an error message."""
    if isinstance(structure, Mapping):
        return f"{{{', '.join(f'{key!r}: {_outline(one)}' for key, one in structure.items())}}}"
    if isinstance(structure, (tuple, list)):
        outlines = ", ".join(map(_outline, structure))
        return f"({outlines})" if isinstance(structure, tuple) else f"[{outlines}]"
    return type(structure).__name__


def _stack(indices: Sequence[int], values: Iterable[Any]) -> tf.Tensor:
    """Stacks one value of every sample, [samples, ...]; refuses objects and unlike shapes."""
    values = list(values)
    if isinstance(values[0], (bool, int, float, complex, str, bytes)):
        return tf.convert_to_tensor(values)  # [samples]
    arrays = [np.asarray(value) for value in values]
    for index, array, value in zip(indices, arrays, values, strict=True):
        if array.dtype.hasobject:
            raise TypeError(
                f"a value of sample {index} is {type(value).__name__}, which no tensor can be made "
                "of. Give numbers, arrays or tensors."
            )
        if array.shape != arrays[0].shape:
            raise ValueError(
                f"samples do not stack: a value of sample {index} has shape {array.shape}, and in "
                f"sample {indices[0]} it is {arrays[0].shape}. Pad or crop them to one shape."
            )
    return tf.convert_to_tensor(np.stack(arrays))  # [samples, ...]


def read_batches(stream: tf.data.Dataset, size: int, *, drop_last: bool) -> Iterator[Any]:
    """Yields batches, [size, ...] each; the last one may be smaller, unless `drop_last`.

    Raises:
      ValueError: If samples have different shapes.
    """
    batches = stream.batch(size, drop_remainder=drop_last).prefetch(_BATCHES_AHEAD)
    try:
        yield from batches
    except tf.errors.InvalidArgumentError as error:
        if "batch tensors with different shapes" not in error.message:
            raise
        found = error.message[error.message.index("First element") :].split(" [Op:")[0]
        raise ValueError(
            f"samples do not stack: {found.rstrip('. ')}. Pad or crop them to one shape."
        ) from None
