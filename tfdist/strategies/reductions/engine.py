"""Engines, which carry messages between workers: their protocol, and the engine of a lone worker.

`execute_on_instances` restricts the collectives of every strategy in this process to some of the
instances; `executing_instances` returns them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import tensorflow as tf

# Of the process, not of a thread: replicas run in threads.
_executing: list[tuple[int, ...]] = []


@dataclass(frozen=True)
class Routes:
    """The number of rows that the workers exchange; int32.

    Attributes:
      sent: [workers], the rows that this worker sends to each.
      received: [workers], the rows that it receives from each; None before the first exchange.
      most: [], at least the most rows between any two workers, equal on all; None where the engine
        does not need it.
    """

    sent: tf.Tensor
    received: tf.Tensor | None = None
    most: tf.Tensor | None = None

    def back(self) -> Routes:
        """Returns the routes of the answers."""
        assert self.received is not None
        return Routes(self.received, self.sent, self.most)


class Collectives(Protocol):
    """One engine, as seen from one worker.

    Each method adds ops to the current graph. All of them are collectives: every worker must build
    and run the same ones, or the others wait.

    Attributes:
      num_workers: The number of workers.
      worker_index: The index of this worker.
      bucket_size_bytes: The bucket size (see `buckets`).
      threshold_bytes: The bucketing threshold (see `buckets`).
    """

    num_workers: int
    worker_index: int
    bucket_size_bytes: int
    threshold_bytes: int

    @property
    def newest_training(self) -> int:
        """The number that `begin_training` was given last; 0 before."""

    def begin_training(self, number: int) -> None:
        """Counts the messages of a name from 0 again.

        Workers whose last models differed have counted differently. All of them call it with a
        number that is larger than the `newest_training` of each.
        """

    def sum(self, tensors: Sequence[tf.Tensor], name: str) -> list[tf.Tensor]:
        """Sums each tensor over the workers, all tensors in one message.

        Args:
          tensors: Tensors of one dtype; the shape of each is equal on all workers.
          name: The name of the message, equal on all workers.

        Returns:
          One tensor per input, of its shape and dtype.
        """

    def gather(self, tensor: tf.Tensor, name: str, *, same_rows: bool = False) -> tf.Tensor:
        """Concatenates the workers' tensors along axis 0, in worker order.

        Args:
          tensor: [rows_of_this_worker, ...]; only the first dimension may differ between workers.
          name: The name of the message, equal on all workers.
          same_rows: Whether the first dimension is equal as well, which some engines make use of.

        Returns:
          [sum of rows, ...]
        """

    def broadcast(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        """Returns the value of worker 0 on every worker; shapes are equal and fully known."""

    def exchange(self, rows: tf.Tensor, routes: Routes, name: str) -> tuple[tf.Tensor, Routes]:
        """Sends each worker its rows, of any number.

        Args:
          rows: [sum of the rows sent, ...], those for worker 0 first.
          routes: How many rows; those of an earlier exchange save a message.
          name: The name of the message, equal on all workers.

        Returns:
          ([sum of the rows received, ...], those of worker 0 first; the routes, complete).
        """

    def among(self, instances: tuple[int, ...]) -> Collectives:
        """Returns the collectives between some of the workers; this one is among them."""


class NoCollectives:
    """The collectives of a worker that is alone: every tensor stays as it is."""

    num_workers = 1
    worker_index = 0
    bucket_size_bytes = threshold_bytes = 1 << 20
    newest_training = 0

    def begin_training(self, number: int) -> None:
        pass

    def sum(self, tensors: Sequence[tf.Tensor], name: str) -> list[tf.Tensor]:
        return list(tensors)

    def gather(self, tensor: tf.Tensor, name: str, *, same_rows: bool = False) -> tf.Tensor:
        return tensor

    def broadcast(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        return tensor

    def exchange(self, rows: tf.Tensor, routes: Routes, name: str) -> tuple[tf.Tensor, Routes]:
        return rows, Routes(routes.sent, routes.sent)

    def among(self, instances: tuple[int, ...]) -> NoCollectives:
        return self


def executing_instances() -> tuple[int, ...] | None:
    """Returns the instances that execute a function at present; None if all of the run do."""
    return _executing[-1] if _executing else None


@contextmanager
def executing_on(instances: tuple[int, ...]) -> Iterator[None]:
    """Restricts collectives to these instances, of which this is one, in the `with` block."""
    _executing.append(instances)
    try:
        yield
    finally:
        _executing.pop()
