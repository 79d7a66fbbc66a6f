"""GraphExchange: a graph and its session, for a direct exchange in place of gRPC's ring.

The order of events is drawn in `tfdist.strategies.grpc.direct_exchange`.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.cluster import Cluster
from tfdist.strategies.grpc.collectives import GrpcCollectives
from tfdist.strategies.grpc.direct_exchange import DirectExchange
from tfdist.strategies.grpc.servers import device_filter, full_name
from tfdist.strategies.placement import HOST

# Every worker asks every other one in each step. With more workers the ring has fewer messages.
MOST_WORKERS = 8


def endpoint_of(cluster: Cluster, index: int) -> DirectExchange:
    """Returns the endpoint of a worker of a cluster."""
    hosts = tuple(f"{full_name(task)}{HOST}" for task in cluster.workers)
    is_together = cluster.local_index(cluster.workers[-1]) == len(hosts) - 1
    return DirectExchange(hosts=hosts, index=index, on_one_machine=is_together)


def may_exchange_directly(
    num_workers: int,
    session_config: v1.ConfigProto | None,
    *,
    steps_per_call: int,
    are_all_there: bool,
) -> bool:
    """Decides, before a graph is built, whether its workers exchange directly.

    They do if the session shares its state, each call is one step (those of a loop are not seen
    from outside), and all workers of the run build the graph. Once the graph is complete,
    `GrpcCollectives` may still find a collective that needs the ring.
    """
    isolates = session_config is not None and session_config.isolate_session_state
    return (
        1 < num_workers <= MOST_WORKERS
        and steps_per_call == 1
        and not isolates  # Such sessions have their own queues on each worker.
        and are_all_there
    )


class GraphExchange:
    """The direct exchange of one graph. Every worker makes one, and calls the same methods.

    The workers must leave together (see `reductions.direct_exchange`).
    """

    def __init__(self, cluster: Cluster, collectives: GrpcCollectives) -> None:
        self._cluster = cluster
        self._collectives = collectives

    def begin(self) -> None:
        """Notes the collectives of the graph that is built next."""
        self._collectives.note_collectives()

    def complete(self, needed: Sequence[tf.Tensor | tf.Operation] = ()) -> None:
        """Replaces all noted collectives by a direct exchange, or none of them.

        Args:
          needed: Tensors and operations that every step runs, on every worker: the small sums, and
            indices of sparse gradients, that these depend on share a message.
        """
        endpoint = endpoint_of(self._cluster, self._collectives.worker_index)
        self._collectives.exchange_directly(endpoint, needed)

    def configure(self, config: v1.ConfigProto) -> v1.ConfigProto:
        """Returns a copy of the strategy's config with the devices of all workers."""
        seen = v1.ConfigProto()
        seen.CopyFrom(config)
        seen.device_filters[:] = [device_filter(task) for task in self._cluster.workers]
        return seen
