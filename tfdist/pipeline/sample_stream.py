"""Combined batches of a `tf.data.Dataset` of single samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

_BATCHES_AHEAD = 2


def count_samples(stream: tf.data.Dataset) -> int | None:
    """Returns how many samples a dataset has; None if that is unknown or infinite."""
    count = int(stream.cardinality())
    return None if count < 0 else count


def own_samples(stream: tf.data.Dataset, part: range | None, shard: tuple[int, int]) -> Any:
    """Returns a dataset of this worker's samples.

    Args:
      stream: The dataset of all samples.
      part: Which of them are this worker's, where their number is known.
      shard: Else: (count, index); each `count`-th sample from the `index`-th on.
    """
    if part is None:
        return stream.shard(*shard)
    return stream.skip(part.start).take(len(part))


def read_batches(stream: tf.data.Dataset, size: int, *, drop_last: bool) -> Iterator[Any]:
    """Batches a dataset, some batches ahead of whoever takes them.

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
