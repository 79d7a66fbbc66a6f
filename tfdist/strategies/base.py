"""BaseStrategy: the parts that LocalStrategy, MultiWorkerStrategy and HorovodStrategy share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeGuard

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.cluster import Cluster, PeerWatch, Task
from tfdist.strategies.divided.tables import check_partitioner
from tfdist.strategies.eager.functions import without_partial
from tfdist.strategies.eager.run import needs_all_workers
from tfdist.strategies.extended import WorkerExtended
from tfdist.strategies.placement import ReplicaCount, own_gpu, place
from tfdist.strategies.reductions.division import division_of
from tfdist.strategies.reductions.engine import Collectives
from tfdist.strategies.worker_strategy import WorkerStrategy


def resolver_of(
    jobs: Mapping[str, Sequence[str]], task: Task
) -> tf.distribute.cluster_resolver.ClusterResolver:
    """Returns a resolver of a task in a cluster."""
    spec = tf.train.ClusterSpec({job: [*addresses] for job, addresses in jobs.items()})
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        spec, task_type=task.type, task_id=task.index, rpc_layer="grpc"
    )


def is_tfdist_strategy(strategy: object) -> TypeGuard[WorkerStrategy]:
    """Returns whether a strategy is one of `tfdist.strategies`."""
    return isinstance(strategy, BaseStrategy)


class BaseStrategy(v1.distribute.Strategy, tf.distribute.Strategy):  # type: ignore[misc]
    """A strategy whose sessions run in this process, without other workers to watch.

    It is one of TensorFlow 1, for sessions, and of TensorFlow 2, whose programs ask for it.

    `LocalStrategy` is like this. `HorovodStrategy` overrides `watch_peers`. The workers of
    `MultiWorkerStrategy` talk through TensorFlow's servers: it overrides `master`,
    `update_config_proto` and `direct_exchange` as well.

    Args:
      collectives: The engine between this worker and the others.
      replicas: The replicas of this worker.
      device: The device of the first replica; None is this worker's GPU, or the second logical CPU
        on a machine without one.
      variables_on_host: Whether variables, slots and updates are on the host rather than on the
        device.
      local_index: Index of this worker on its machine, from 0; it decides which GPU is its own.
      full_name: This worker's part of a device's full name, such as
        "/job:worker/replica:0/task:1"; "" where a session has no other tasks.
      half: The dtype in which float32 gradients are sent to other workers; None is float32.
      partitioner: Says which variables are divided between the workers, as `variable_partitioner`
        of `tf.distribute.ParameterServerStrategy` does; None divides none.

    Raises:
      DividedTableError: If `partitioner` is not a function.
      DeviceError: If a device does not exist.
    """

    cluster: Cluster | None = None
    task: Task | None = None

    def __init__(
        self,
        collectives: Collectives,
        *,
        replicas: ReplicaCount,
        device: str | None,
        variables_on_host: bool,
        local_index: int = 0,
        full_name: str = "",
        half: tf.DType | None = None,
        partitioner: Any = None,
    ) -> None:
        checked = check_partitioner(partitioner)
        if device is None:
            device = own_gpu(local_index, replicas.num_devices)
        placement = place(
            device,
            variables_on_host=variables_on_host,
            num_replicas=replicas.number,
            devices_per_replica=replicas.devices_each,
        )
        super().__init__(WorkerExtended(self, placement, collectives, full_name, half, checked))

    @property
    def cluster_resolver(self) -> tf.distribute.cluster_resolver.ClusterResolver | None:
        """A resolver that knows the workers and this task; None where there is one process alone.

        The chief is task "chief", else "worker" 0, as in TensorFlow's strategies.
        """
        if self.cluster is None or self.task is None:
            return None
        return resolver_of(self.cluster.jobs, self.task)

    def scope(self) -> AbstractContextManager[Any]:
        """Returns a context in which variables and Keras models belong to this strategy.

        In TensorFlow 2 the first call waits until all workers have joined.
        """
        self.extended.enter_tensorflow_2()
        return super().scope()

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
        options: tf.distribute.RunOptions | None = None,
    ) -> Any:
        """Calls a function once for each replica of this worker, as `tf.distribute.Strategy.run`.

        A tf.function has a trace for each replica.
        """
        fn, args, kwargs = without_partial(fn, args, kwargs)
        return super().run(fn, args, kwargs, options)

    def read_rows(self, table: Any, ids: Any) -> tf.Tensor:
        """Returns rows of a variable that may be divided between the workers, for inspection.

        A collective if it is divided: every worker must call it; each gets the rows that it asks
        for.

        Args:
          table: A variable made in the strategy's scope.
          ids: Integers, the numbers of rows in the whole table.
        """
        inner = table if isinstance(table, tf.Variable) else table.value
        if division_of(table) is None or not tf.executing_eagerly():
            return tf.gather(inner, ids)
        with needs_all_workers("read_rows"):
            return tf.stop_gradient(tf.gather(inner, ids))

    def join_workers(self) -> None:
        """Joins the other workers for TensorFlow 2; a second call changes nothing."""

    @property
    def master(self) -> str:
        """The target for a session: this process itself."""
        return ""

    def watch_peers(self) -> PeerWatch:
        """Returns a watch over no other worker."""
        return PeerWatch()

    def update_config_proto(self, config_proto: v1.ConfigProto) -> v1.ConfigProto:
        """Returns a copy of a session's config in which this worker's devices exist."""
        return self.extended.placement.configure(config_proto)

    def direct_exchange(
        self, session_config: v1.ConfigProto | None = None, *, steps_per_call: int = 1
    ) -> Any:
        """Returns the `GraphExchange` of the graph that is built next; None where none is made.

        Its session has this config (None is TensorFlow's default), and makes so many steps in a
        call.
        """
        return None

    def describe_reductions(self) -> str:
        """Describes, for the log, how gradients are reduced."""
        return "on the host of one process"

    def note_step(self, gradient_bytes: int) -> None:
        """Notes a step of TensorFlow 2, when its function is traced.

        Args:
          gradient_bytes: The bytes of its dense gradients.
        """

    def abandon_step(self) -> None:
        """Notes that a function of TensorFlow 2 that sends to other workers has failed."""
