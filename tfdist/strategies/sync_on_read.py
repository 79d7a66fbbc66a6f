"""Variables that each worker updates alone and that are combined when read.

Batch-norm statistics are such variables (`synchronization=ON_READ`): no message is sent while
training; whoever reads one outside the replicas' code gets the combination over all workers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tfdist.strategies.private_tensorflow import ResourceVariable

Aggregation = tf.VariableAggregation


class SyncOnReadVariable(ResourceVariable):  # type: ignore[misc]
    """A variable on the device; reads in cross-replica context combine it over the workers.

    Such a read is a collective: every worker must run it. In replica context (inside model_fn)
    and outside the strategy's scope a read is local, so saving one never waits for others.
    """

    def read_value(self) -> tf.Tensor:
        return self._combined() if _is_cross_replica() else super().read_value()

    def value(self) -> tf.Tensor:
        return self._combined() if _is_cross_replica() else super().value()

    def _combined(self) -> tf.Tensor:
        return tf.distribute.get_strategy().extended.read_var(self)

    def read_local(self) -> tf.Tensor:
        """Reads this worker's own value, in whatever context."""
        return super().read_value()


def _is_cross_replica() -> bool:
    return bool(tf.distribute.has_strategy() and tf.distribute.in_cross_replica_context())


def variables_of(graph: tf.Graph) -> list[SyncOnReadVariable]:
    """Lists a graph's variables of this kind, in the order of their creation."""
    collected: Iterable[Any] = [
        *graph.get_collection(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES),
        *graph.get_collection(tf.compat.v1.GraphKeys.LOCAL_VARIABLES),
    ]
    return [v for v in collected if isinstance(v, SyncOnReadVariable)]


def share_out(variable: SyncOnReadVariable, combined: tf.Tensor, worker_index: int) -> tf.Tensor:
    """Says what this worker must hold so that a later read gives `combined` again.

    Means are held by all; of a sum, worker 0 holds everything and the others nothing.
    """
    if variable.aggregation == Aggregation.SUM and worker_index > 0:
        return tf.zeros_like(combined)
    return combined
