"""Groups of neighbouring replicas, and the gathering of one row of numbers per replica in a group.

Replicas are numbered over all workers. Three workers with two replicas each, in groups of 3:

    worker           0       1       2
    replica        0   1   2   3   4   5
    group          0   0   0   1   1   1

Rows of one worker are combined before they are sent, as far as they belong to the same group:
gcd(group size, replicas of a worker) of them at a time, which is 1 here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.process.text import listed
from tfdist.strategies.base import is_tfdist_strategy
from tfdist.strategies.placement import HOST

# The running place and where statistics over replicas are refused; None elsewhere.
_refusing_place: ContextVar[str | None] = ContextVar("refusing_place", default=None)


# Graph collection of what replicas combine. Only keys that are strings are exported with it.
_COMBINED = ("tfdist_combined_over_replicas",)


@dataclass(frozen=True, kw_only=True)
class ReplicaGroups:
    """The groups of a run, as seen from one worker.

    Raises:
      ValueError: If the size does not divide the number of all replicas.
    """

    size: int  # The number of replicas in a group.
    num_replicas: int = 1  # The number of replicas in each worker.
    num_workers: int = 1
    worker_index: int = 0

    def __post_init__(self) -> None:
        total = self.num_replicas * self.num_workers
        if total % self.size:
            allowed = [n for n in range(1, total + 1) if total % n == 0]
            below = max(n for n in allowed if n < self.size)
            above = [n for n in allowed if n > self.size][:1]
            raise ValueError(
                f"group_size {self.size} does not divide the {total} replicas of this run "
                f"({self.num_workers} workers x {self.num_replicas}). Nearest: "
                f"{listed(map(str, [below, *above]))}; None is all of them."
            )

    @property
    def rows_together(self) -> int:
        """The number of this worker's replicas whose rows are combined before they are sent."""
        return math.gcd(self.size, self.num_replicas)

    @property
    def spans_workers(self) -> bool:
        """True if a group has replicas of several workers."""
        return self.num_replicas % self.size > 0

    def rows_of(self, replica: int) -> slice:
        """Returns the rows of the group of this worker's replica, of those of all workers."""
        number = replica if not self.spans_workers else self._number(replica)
        count = self.size // self.rows_together
        first = number // self.size * count
        return slice(first, first + count)

    def _number(self, replica: int) -> int:
        return self.worker_index * self.num_replicas + replica


@contextmanager
def refusing_statistics_over_replicas(place: str) -> Iterator[None]:
    """Refuses, in the `with` block, layers with statistics of several replicas.

    `place` says in the message where the code in the block runs.
    """
    token = _refusing_place.set(place)
    try:
        yield
    finally:
        _refusing_place.reset(token)


def refusing_place() -> str | None:
    """Returns where the running code is, if statistics over replicas are refused there."""
    return _refusing_place.get()


def current_groups(size: int | None) -> ReplicaGroups:
    """Returns the groups of the strategy whose replica is running; of a lone replica without one.

    A size of None is all replicas of all workers.

    Raises:
      ValueError: If the size does not divide the number of replicas, or the strategy is not one of
        tfdist.
    """
    context = tf.distribute.get_replica_context()
    if context is None or not tf.distribute.has_strategy():
        return ReplicaGroups(size=1)
    extended = context.strategy.extended
    if not is_tfdist_strategy(context.strategy):
        total = context.num_replicas_in_sync
        if total == 1 or size == 1:
            return ReplicaGroups(size=1)
        raise ValueError(
            f"{type(context.strategy).__name__} is not a strategy of tfdist.strategies, which "
            "statistics over replicas need. Use MultiWorkerStrategy, HorovodStrategy or "
            "LocalStrategy, or set group_size=1."
        )
    collectives = extended.collectives
    num_replicas = extended.placement.num_replicas
    return ReplicaGroups(
        size=collectives.num_workers * num_replicas if size is None else size,
        num_replicas=num_replicas,
        num_workers=collectives.num_workers,
        worker_index=collectives.worker_index,
    )


def combined_over_replicas(graph: tf.Graph) -> list[str]:
    """Returns the names of what the replicas in a graph combine."""
    return list(graph.get_collection(_COMBINED))


def combine_in_group(
    groups: ReplicaGroups,
    row: tf.Tensor,
    combine: Callable[[tf.Tensor], tf.Tensor],
    name: str,
) -> tf.Tensor:
    """Combines the rows of the replicas in this replica's group; all of them get the same bits.

    A collective, one message: every replica of every worker must call it, also those of other
    groups. A group inside one worker sends nothing.

    The row is [columns], and the result as well, on the host. `combine` maps [rows, columns] to
    [columns] there; it is called for the rows of one worker, then for its results. The name says
    what the rows are, for the check that all workers have the same model.
    """
    if groups.size == 1:
        return row
    v1.add_to_collection(_COMBINED, name)

    def merge(strategy: Any, value: Any) -> tuple[tf.Tensor, ...]:
        parts = strategy.experimental_local_results(value)  # [columns] of each replica
        with tf.device(HOST):
            together = groups.rows_together
            # [rows of this worker, columns]
            rows = tf.stack(
                [combined(parts[i : i + together]) for i in range(0, len(parts), together)]
            )
            if groups.spans_workers:
                rows = strategy.extended.reducer.gather_rows(rows, name)  # [rows of all, columns]
            return tuple(
                combined(tf.unstack(rows[groups.rows_of(replica)])) for replica in range(len(parts))
            )

    def combined(parts: Any) -> tf.Tensor:
        return parts[0] if len(parts) == 1 else combine(tf.stack(parts))

    context = tf.distribute.get_replica_context()
    results = context.merge_call(merge, args=(row,))
    return results[context.strategy.extended.replica_in_worker()]
