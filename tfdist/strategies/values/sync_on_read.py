"""Sync-on-read variables: each replica updates its own, and a read combines them.

Batch-norm statistics are such variables (`synchronization=ON_READ`), and so are the counts and
sums of metrics: no message is sent while a step runs.

    in a replica's code           reads and assigns the replica's own variable
    in cross-replica context,     the mean, sum or first value over all replicas of all workers:
    or a fetch of session.run     a collective, so every worker must read
    outside the strategy's scope  `read_value()` is the first replica's, so saving one variable does
                                  not wait for other workers
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.strategies.private_tensorflow import ResourceVariable
from tfdist.strategies.values.replica_context import (
    is_cross_replica,
    is_in_replica,
    replica_in_worker,
)

Aggregation = tf.VariableAggregation


class SyncOnReadVariable(ResourceVariable):  # type: ignore[misc]
    """One variable per replica of this worker, under one name.

    All have the same shape, and so has a read. The private members that start with `_handle` and
    `_as_graph_element` are those of TensorFlow's base class.

    Attributes:
      others: The variables of the replicas after the first, which is this object itself.
      initializer_of_all: Initializes the variables of all replicas; None with one replica.
      read_over_all: Reads the combination over all replicas; None if the run has one replica.
    """

    others: tuple[tf.Variable, ...] = ()
    initializer_of_all: tf.Operation | None = None
    read_over_all: Callable[[], tf.Tensor] | None = None
    _over_all: tf.Tensor | None = None

    @property
    def handle(self) -> tf.Tensor:
        return self._handles[replica_in_worker()] if self.others else self._handle

    @property
    def initializer(self) -> tf.Operation:
        return self.initializer_of_all or super().initializer

    def read_value(self) -> tf.Tensor:
        return self._combined() if is_cross_replica() else super().read_value()

    def value(self) -> tf.Tensor:
        return self._combined() if is_cross_replica() else super().value()

    def value_over_all(self) -> tf.Tensor:
        """Returns a read of the combination over all replicas, a collective.

        The graph gets one such read, which later calls return.

        Raises:
          RuntimeError: If the graph is finalized, and has no such read yet.
        """
        if self.read_over_all is None:
            return super().read_value()
        if self._over_all is None:
            if self.graph.finalized:
                raise RuntimeError(
                    f"{self.name} is combined over all replicas when it is fetched, and the graph "
                    f"is finalized: no operation can be added. Call {self.op.name}.read_value() in "
                    "the strategy's scope when the graph is built, and fetch what it returns."
                )
            with self.graph.as_default(), tf.init_scope():
                self._over_all = self.read_over_all()
        return self._over_all

    def _as_graph_element(self) -> tf.Tensor:
        """Returns the tensor that `session.run` fetches for this variable."""
        return super()._as_graph_element() if is_in_replica() else self.value_over_all()

    def read_each(self) -> list[tf.Tensor]:
        """Returns the value of each replica of this worker, in any context."""
        values = []
        for handle in self._handles:
            with tf.device(handle.device):
                values.append(tf.raw_ops.ReadVariableOp(resource=handle, dtype=self.dtype))
        return values

    def assign_each(self, values: Sequence[tf.Tensor]) -> tf.Operation:
        """Assigns one value to each replica of this worker, in any context."""
        assignments = []
        for handle, value in zip(self._handles, values, strict=True):
            with tf.device(handle.device):
                assignments.append(tf.raw_ops.AssignVariableOp(resource=handle, value=value))
        return tf.group(*assignments)

    def share_out(self, combined: tf.Tensor, worker_index: int) -> tf.Operation:
        """Assigns values whose combination is `combined`.

        Of a mean, every replica gets `combined`; of a sum, the first replica of worker 0 gets it
        and all others get zeros.
        """
        values = [combined for _ in self._handles]
        if self.aggregation == Aggregation.SUM:
            zeros = tf.zeros_like(combined)
            # A placeholder, not a constant: Grappler would see that a constant choice of zeros does
            # not depend on `combined`, and prune the reduction that other workers wait for.
            is_first = tf.compat.v1.placeholder_with_default(worker_index == 0, [])
            values = [tf.where(is_first, combined, zeros), *(zeros for _ in values[1:])]
        return self.assign_each(values)

    @property
    def _handles(self) -> list[tf.Tensor]:
        return [self._handle, *(other.handle for other in self.others)]

    def _combined(self) -> tf.Tensor:
        return tf.distribute.get_strategy().extended.read_var(self)


def make_variable(devices: Sequence[str], arguments: dict[str, Any]) -> SyncOnReadVariable:
    """Makes one variable per replica of this worker; all start with the value of the first."""
    with tf.init_scope():
        with tf.device(devices[0]):
            variable = SyncOnReadVariable(**arguments)
        others = []
        for replica, device in enumerate(devices[1:], start=1):
            with tf.device(device):
                own = {
                    "initial_value": variable.initial_value,
                    "trainable": False,
                    "collections": [],
                    "name": f"{variable.op.name}/replica_{replica}",
                    "dtype": variable.dtype,
                }
                others.append(ResourceVariable(**own))
        if others:
            variable.others = tuple(others)
            initializers = [variable.initializer, *(other.initializer for other in others)]
            variable.initializer_of_all = tf.group(*initializers)
    return variable


def variables_of(graph: tf.Graph) -> list[SyncOnReadVariable]:
    """Returns the sync-on-read variables of a graph, in the order of their creation."""
    collected: Iterable[Any] = [
        *graph.get_collection(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES),
        *graph.get_collection(tf.compat.v1.GraphKeys.LOCAL_VARIABLES),
    ]
    return [v for v in collected if isinstance(v, SyncOnReadVariable)]
