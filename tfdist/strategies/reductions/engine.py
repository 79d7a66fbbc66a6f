"""Engines, which carry messages between workers: their protocol, and the engine of a lone worker.

`execute_on_instances` restricts the collectives of every strategy in this process to some of the
instances; which ones is kept here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import tensorflow as tf

# Of the process, not of a thread: replicas run in threads.
_executing: list[tuple[int, ...]] = []


class Collectives(Protocol):
    """One engine, as seen from one worker.

    Attributes:
      num_workers: How many there are.
      worker_index: Which of them this one is.
      max_bucket_bytes: How large a message of several tensors shall grow.
      alone_bytes: The size from which on a tensor is a message of its own.
    """

    num_workers: int
    worker_index: int
    max_bucket_bytes: int
    alone_bytes: int

    def sum(self, tensors: Sequence[tf.Tensor], name: str) -> list[tf.Tensor]:
        """Sums each tensor over the workers, all of them in one message; dtypes are equal."""

    def gather(self, tensor: tf.Tensor, name: str, *, same_rows: bool = False) -> tf.Tensor:
        """Concatenates along axis 0 in worker order; only the first dimensions may differ.

        `same_rows` says that these do not differ either, which is faster with some engines.
        """

    def broadcast(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        """Gives every worker the value of worker 0; shapes are equal and fully known."""

    def among(self, instances: tuple[int, ...]) -> Collectives:
        """Returns the collectives between some of the workers; this one is among them."""


class NoCollectives:
    """The collectives of a worker that is alone."""

    num_workers = 1
    worker_index = 0
    max_bucket_bytes = alone_bytes = 1 << 20

    def sum(self, tensors: Sequence[tf.Tensor], name: str) -> list[tf.Tensor]:
        return list(tensors)

    def gather(self, tensor: tf.Tensor, name: str, *, same_rows: bool = False) -> tf.Tensor:
        return tensor

    def broadcast(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        return tensor

    def among(self, instances: tuple[int, ...]) -> NoCollectives:
        return self


def executing_instances() -> tuple[int, ...] | None:
    """Returns the instances that execute a function by themselves; None if all do the same."""
    return _executing[-1] if _executing else None


@contextmanager
def executing_on(instances: tuple[int, ...]) -> Iterator[None]:
    """Restricts collectives to these instances, of which this is one, in the `with` block."""
    _executing.append(instances)
    try:
        yield
    finally:
        _executing.pop()
