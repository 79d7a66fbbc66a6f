"""WorkerStrategy: the members of a strategy that tfdist uses."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

import tensorflow.compat.v1 as v1

from tfdist.cluster import Cluster, PeerWatch, Task


class WorkerStrategy(Protocol):
    """A strategy of tfdist, as its users see it.

    TensorFlow's own base class has no types: a type checker accepts every attribute of a subclass.
    A parameter of this type may use only what stands here. `tfdist.strategies.base.BaseStrategy`
    implements it.

    Attributes:
      cluster: The cluster that this worker is part of; None where the strategy knows no addresses.
      task: This worker's task in `cluster`; None without a cluster.
    """

    cluster: Cluster | None
    task: Task | None

    @property
    def extended(self) -> Any:
        """The `WorkerExtended`, which creates variables and reduces values."""

    @property
    def num_replicas_in_sync(self) -> int:
        """The number of replicas of all workers."""

    @property
    def master(self) -> str:
        """The target for a session."""

    def scope(self) -> AbstractContextManager[Any]:
        """Returns a context in which variables belong to this strategy."""

    def join_workers(self) -> None:
        """Joins the other workers for TensorFlow 2."""

    def watch_peers(self) -> PeerWatch:
        """Returns a watch over the other workers; the caller starts it."""

    def update_config_proto(self, config_proto: v1.ConfigProto) -> v1.ConfigProto:
        """Returns a copy of a session's config with what this strategy needs."""

    def direct_exchange(
        self, session_config: v1.ConfigProto | None = None, *, steps_per_call: int = 1
    ) -> Any:
        """Returns the `GraphExchange` of the graph that is built next; None where none is made."""

    def describe_reductions(self) -> str:
        """Describes, for the log, how gradients are reduced."""

    def note_step(self, gradient_bytes: int) -> None:
        """Notes a step of TensorFlow 2, when its function is traced.

        Args:
          gradient_bytes: The bytes of its dense gradients.
        """

    def abandon_step(self) -> None:
        """Notes that a function of TensorFlow 2 that sends to other workers has failed."""
