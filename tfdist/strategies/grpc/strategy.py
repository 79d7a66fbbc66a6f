"""MultiWorkerStrategy: workers of a TF_CONFIG cluster, joined by TensorFlow's gRPC collectives."""

from __future__ import annotations

import os
from typing import Any
from weakref import WeakValueDictionary

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.cluster import (
    Cluster,
    ClusterError,
    PeerWatch,
    Task,
    check_port,
    find_cluster,
    find_mpi_rank,
)
from tfdist.cluster.arguments import check_flag, check_number
from tfdist.cluster.environment import REPLACE, find_engine, read_stall_timeout, read_start_timeout
from tfdist.cluster.tf_config import TfConfig
from tfdist.process.endings import OneLineError, print_to_stderr
from tfdist.strategies.base import BaseStrategy, resolver_of
from tfdist.strategies.eager.run import watch_until_the_end
from tfdist.strategies.grpc.collectives import GrpcCollectives
from tfdist.strategies.grpc.function_exchange import FunctionExchange
from tfdist.strategies.grpc.graph_exchange import (
    MOST_WORKERS,
    GraphExchange,
    endpoint_of,
    may_exchange_directly,
)
from tfdist.strategies.grpc.servers import (
    SERVERS,
    RunningServer,
    add_server,
    device_filter,
    full_name,
    start_server,
)
from tfdist.strategies.host_memory import keep_memory
from tfdist.strategies.placement import DeviceError, count_replicas
from tfdist.strategies.private_runtime import (
    configure_collectives,
    has_started_server,
)
from tfdist.strategies.reductions.compression import Compression, find_half
from tfdist.strategies.reductions.engine import Collectives, NoCollectives, executing_instances


class StrategyTooLateError(OneLineError, RuntimeError):
    """A strategy was made after TensorFlow's runtime had started."""


# Over Horovod a step with 33 MB of gradients takes three quarters of the time.
_SLOW_FROM_BYTES = 8 << 20

# The latest strategy of each address: a server needs its devices.
_STRATEGIES: WeakValueDictionary[str, MultiWorkerStrategy] = WeakValueDictionary()


class MultiWorkerStrategy(BaseStrategy):
    """Synchronous training on the workers of a cluster, over gRPC.

    Every worker runs the same program. Each has its own graph; variables start with worker 0's
    values; `Optimizer.apply_gradients` sums gradients over the workers, on the host. With an
    Estimator:

        config = RunConfig(train_distribute=MultiWorkerStrategy())
        Estimator(model_fn, "/tmp/model", config).train(input_fn, steps=1000)

    Without an Estimator:

        strategy = MultiWorkerStrategy()
        with tf.Graph().as_default(), strategy.scope():
            optimizer = v1.train.GradientDescentOptimizer(0.1)

            def step():  # Gradients are summed over the workers.
                return optimizer.minimize(loss() / strategy.num_replicas_in_sync)

            train_op = strategy.run(step)
            config = strategy.update_config_proto(v1.ConfigProto())
            with v1.Session(strategy.master, config=config) as session:
                session.run(v1.global_variables_initializer())
                session.run(train_op)

    Each worker is started with its TF_CONFIG, or all of them by `tfdist run`. The constructor
    starts no server: the first read of `master`, by the Estimator or by your program, waits for all
    workers and starts TensorFlow's server.

    Args:
      cluster_resolver: A `tf.distribute.cluster_resolver.ClusterResolver` that knows the cluster
        and this task; None reads TF_CONFIG, or the variables of a Slurm step. With neither, the
        strategy has one worker.
      device: The device that computes gradients. None is this worker's GPU (the workers of one
        machine take one after the other), or a second logical CPU.
      variables_on_host: Whether variables, slots and updates are on the host rather than on the
        device.
      num_replicas: The number of copies of the model in each worker, on `device` and the devices
        after it. They share the variables; each reads its own batches. None takes the number given
        to `tfdist run`, or 1; if both are given, `tfdist run` wins.
      start_timeout_s: How long to wait for the other workers at the start, in seconds. None takes
        the environment variable TFDIST_START_TIMEOUT_S, or 300.
      compression: "fp16" or "bf16" sends float32 gradients to other workers in half precision, and
        adds them in float32. `tfdist.strategies.reductions.compression` states the error, and the
        numbers of workers for which it is worth it. Losses, metrics and initial values stay exact.
        None sends every value as it is.
      variable_partitioner: Says which variables are divided between the workers, each of which then
        holds some of their rows: a function from shape and dtype to the number of shards of each
        axis, such as `tf.distribute.experimental.partitioners.MinSizePartitioner(max_shards=2)`,
        whose default of 1 divides nothing. More than one of the first axis makes one for each
        worker; other axes are refused (docs/large-tables.md).

    Raises:
      ValueError: If `compression` or `num_replicas` is not allowed.
      ClusterError: If the description of the cluster is wrong.
      RendezvousError: If this worker's port is in use.
      DeviceError: If a device does not exist.
    """

    def __init__(
        self,
        cluster_resolver: tf.distribute.cluster_resolver.ClusterResolver | None = None,
        device: str | None = None,
        variables_on_host: bool = True,
        *,
        num_replicas: int | None = None,
        start_timeout_s: float | None = None,
        compression: Compression | None = None,
        variable_partitioner: Any = None,
    ) -> None:
        half = find_half(compression)
        check_flag("variables_on_host", variables_on_host)
        if start_timeout_s is not None:
            check_number("start_timeout_s", start_timeout_s, above=0)
        self.cluster, self.task = _resolve(cluster_resolver) or (None, None)
        self.start_timeout_s = (
            start_timeout_s if start_timeout_s is not None else read_start_timeout()
        )
        self.stall_timeout_s = read_stall_timeout()
        collectives: Collectives = NoCollectives()
        local_index, own_name = 0, ""
        if self.cluster is not None and self.task is not None:
            if self.task.type == "ps" or "ps" in self.cluster.jobs:
                raise ClusterError(
                    "MultiWorkerStrategy has no parameter servers, and the cluster lists job 'ps'. "
                    "Remove 'ps' from the cluster: the workers hold and update the variables "
                    f'themselves. Or give RunConfig parameter_servers="{REPLACE}" and no strategy.'
                )
            # An evaluator evaluates alone.
            if self.task.type != "evaluator":
                local_index = self.cluster.local_index(self.task)
                num_workers = self.cluster.num_workers
                if num_workers > 1:
                    keep_memory(os.environ)  # Before TensorFlow's threads have arenas.
                    collectives = GrpcCollectives(num_workers, self.cluster.worker_index(self.task))
                    own_name = full_name(self.task)
                    if self._address not in SERVERS:
                        check_port(self.cluster, self.task)
        super().__init__(
            collectives,
            replicas=count_replicas(num_replicas),
            device=device,
            variables_on_host=variables_on_host,
            local_index=local_index,
            full_name=own_name,
            half=half,
            partitioner=variable_partitioner,
        )
        self._is_prepared = True
        self._has_advised = False
        self._functions: FunctionExchange | None = None
        if collectives.num_workers > 1:
            assert self.cluster is not None and self.task is not None
            if tf.executing_eagerly():  # Before the program's first operation.
                leader, own = full_name(self.cluster.workers[0]), device_filter(self.task)
                self._is_prepared = configure_collectives(leader, own)
            _STRATEGIES[self._address] = self

    @property
    def _address(self) -> str:
        """This worker's address; asked for only in a cluster."""
        assert self.cluster is not None and self.task is not None
        return self.cluster.address(self.task)

    @property
    def master(self) -> str:
        """The target for a session: this worker's own server, or "" without a cluster.

        The first read waits until all workers of the cluster have joined, then starts the server.

        Raises:
          RendezvousError: If a worker does not join in time, or has another cluster.
          DeviceError: If the server runs already, without the devices that are needed now.
        """
        if self.extended.collectives.num_workers == 1:
            return ""
        address = self._address
        needed = max(1, self.update_config_proto(v1.ConfigProto()).device_count["CPU"])
        if address not in SERVERS:
            self._start_server(needed)
        running = SERVERS[address]
        if needed > running.num_cpus:
            raise DeviceError(
                f"the server of this worker was started with {running.num_cpus} logical CPUs, "
                f"and {needed} are needed now: it cannot get more. Train the model that needs most "
                "devices first, or start the run with `tfdist run --devices-per-replica "
                f"{self.extended.placement.devices_per_replica}`."
            )
        return running.target

    def _start_server(self, num_cpus: int | None) -> None:
        assert self.cluster is not None and self.task is not None
        start_server(
            self.cluster,
            self.task,
            self.update_config_proto(v1.ConfigProto()),
            num_cpus,
            start_timeout_s=self.start_timeout_s,
            stall_timeout_s=self.stall_timeout_s,
        )

    def join_workers(self) -> None:
        """Waits until all workers have joined, then starts this one's server for TensorFlow 2.

        Raises:
          StrategyTooLateError: If TensorFlow has executed an operation before the strategy was
            made, or the process has opened a session over gRPC.
          RendezvousError: If a worker does not join in time, or has another cluster.
        """
        if self.extended.collectives.num_workers == 1:
            return
        running = SERVERS.get(self._address)
        if running is not None:
            if running.server is not None:
                raise StrategyTooLateError(
                    "This process has trained in graphs over gRPC, as an Estimator does, and "
                    "cannot send messages of TensorFlow 2 any more. Train the Keras model first, "
                    "in another program, or over Horovod."
                )
            if running.membership is not None:  # A failed step can be given up.
                self._exchange_in_functions()
            return
        if not self._is_prepared:
            raise StrategyTooLateError(
                "TensorFlow has executed an operation before this strategy was made, and cannot "
                "send messages between workers any more. Make the strategy first in the program: "
                "before datasets, tensors and models."
            )
        self._start_server(None)
        self._exchange_in_functions()
        watch_until_the_end(self)

    def _exchange_in_functions(self) -> None:
        """Makes the functions of TensorFlow 2 exchange large gradients directly."""
        collectives = self.extended.collectives
        if self._functions is None and collectives.num_workers <= MOST_WORKERS:
            assert self.cluster is not None
            self._functions = collectives.functions = FunctionExchange(
                endpoint_of(self.cluster, collectives.worker_index),
                SERVERS[self._address].target,
                [device_filter(task) for task in self.cluster.workers],
            )

    def abandon_step(self) -> None:
        if self._functions is not None:
            self._functions.abandon_step()

    def watch_peers(self) -> PeerWatch:
        """Returns a watch over the workers that this one waits for; the caller starts it.

        The first one waits until all workers have joined, as `master` does.
        """
        if self.extended.collectives.num_workers == 1:
            return PeerWatch()
        if self._address not in SERVERS:
            _ = self.master
        return PeerWatch(SERVERS[self._address].membership, executing_instances())

    def direct_exchange(
        self, session_config: v1.ConfigProto | None = None, *, steps_per_call: int = 1
    ) -> GraphExchange | None:
        collectives = self.extended.collectives
        may = may_exchange_directly(
            collectives.num_workers,
            session_config,
            steps_per_call=steps_per_call,
            are_all_there=executing_instances() is None,  # The other instances may have ended.
        )
        if not may:
            return None
        assert self.cluster is not None
        return GraphExchange(self.cluster, collectives)

    def describe_reductions(self) -> str:
        """Describes how gradients are reduced in the graph whose collectives are being noted."""
        collectives = self.extended.collectives
        way = "directly between" if collectives.can_exchange_directly else "in a ring of"
        messages = self.extended.reducer.describe_messages()
        memory = "freed memory kept" if keep_memory(os.environ) else "freed memory given back"
        return f"gRPC, {way} {collectives.num_workers} workers, {messages}; {memory}"

    def note_step(self, gradient_bytes: int) -> None:
        """Prints once that Horovod would be faster, where gradients are large.

        Args:
          gradient_bytes: The bytes of a step's dense gradients.
        """
        collectives = self.extended.collectives
        is_slow = collectives.num_workers > 1 and gradient_bytes >= _SLOW_FROM_BYTES
        if is_slow and collectives.worker_index == 0 and not self._has_advised:
            self._has_advised = True
            print_to_stderr(
                f"A step sends {gradient_bytes >> 20} MiB of gradients over gRPC. Horovod sends "
                "them in less time: tfdist run --engine horovod."
            )

    def update_config_proto(self, config_proto: v1.ConfigProto) -> v1.ConfigProto:
        config = self.extended.placement.configure(config_proto)
        if self.extended.collectives.num_workers > 1:
            assert self.cluster is not None and self.task is not None
            leader = self.cluster.workers[0]
            config.experimental.collective_group_leader = full_name(leader)
            # Opening a session waits for every worker that it sees. Collectives do not need that.
            config.device_filters[:] = [device_filter(self.task)]
        return config


def from_multi_worker_mirrored(
    stock: tf.distribute.Strategy, *, variables_on_host: bool
) -> MultiWorkerStrategy:
    """Makes the strategy that takes the place of a `tf.distribute.MultiWorkerMirroredStrategy`.

    In eager execution the stock strategy has met the other workers already, and has started a
    server on this task's port, which cannot be stopped. It is used, with the devices that it has.
    """
    devices = [tf.DeviceSpec.from_string(name) for name in stock.extended.worker_devices]
    device = f"/device:{devices[0].device_type}:{devices[0].device_index}"
    has_server = has_started_server(stock)
    if has_server:
        found = _resolve(stock.cluster_resolver)
        assert found is not None
        address = found[0].address(found[1])
        num_cpus = len(tf.config.list_logical_devices("CPU"))
        if address not in SERVERS:
            add_server(address, RunningServer(target=f"grpc://{address}", num_cpus=num_cpus))
    elif devices[0].device_type == "CPU":
        device = f"/device:CPU:{devices[0].device_index + 1}"
    own = MultiWorkerStrategy(
        stock.cluster_resolver, device, variables_on_host, num_replicas=len(devices)
    )
    v1.logging.info(
        "%s runs as tfdist.strategies.MultiWorkerStrategy: %d worker(s), %d replica(s) in each%s.",
        type(stock).__name__,
        own.extended.collectives.num_workers,
        len(devices),
        ", on the server that TensorFlow has started" if has_server else "",
    )
    return own


def in_place_of_servers(
    stock: tf.distribute.Strategy | None, *, variables_on_host: bool
) -> MultiWorkerStrategy:
    """Makes the strategy of a worker whose program was written for parameter servers.

    The workers of TF_CONFIG's cluster hold the variables and train in step; ps tasks hold none. The
    GPUs of `stock`, TensorFlow's ParameterServerStrategy, become replicas.
    """
    devices = [] if stock is None else map(tf.DeviceSpec.from_string, stock.extended.worker_devices)
    num_gpus = sum(device.device_type == "GPU" for device in devices)
    found, resolver = find_cluster(), None
    if found is not None:
        cluster, task = found
        jobs = cluster.without_parameter_servers().jobs
        resolver = resolver_of(jobs, task)
    own = MultiWorkerStrategy(
        resolver, None, variables_on_host, num_replicas=num_gpus if num_gpus > 1 else None
    )
    own.extended.tables.divide_partitioned()
    v1.logging.warning(
        "No variables on parameter servers: %d worker(s) hold them and train in step, as with "
        "tfdist.strategies.MultiWorkerStrategy. One step is one update by the batches of all.",
        own.extended.collectives.num_workers,
    )
    return own


def start_server_of_run() -> None:
    """Starts the server of this worker of the environment's cluster, for its latest strategy.

    The first call waits until all workers of the cluster have joined.

    Raises:
      RuntimeError: If there is no such strategy.
      RendezvousError: If a worker does not join in time, or has another cluster.
    """
    found = find_cluster()
    strategy = _STRATEGIES.get(found[0].address(found[1])) if found is not None else None
    if strategy is None:
        raise RuntimeError(
            "this run has no MultiWorkerStrategy yet, and its server needs to know the devices of "
            "one. Make the strategy first, on every instance."
        )
    _ = strategy.master


def _resolve(resolver: Any) -> tuple[Cluster, Task] | None:
    """Finds the cluster: in the resolver, else in the environment."""
    if resolver is not None and not hasattr(resolver, "cluster_spec"):
        raise ValueError(
            "cluster_resolver must be a tf.distribute.cluster_resolver.ClusterResolver, got "
            f"{resolver!r}. Leave it out where TF_CONFIG describes the cluster."
        )
    jobs = {} if resolver is None else resolver.cluster_spec().as_dict()
    if not jobs:
        rank = find_mpi_rank() if find_engine() == "horovod" else None
        if rank is not None:
            raise ClusterError(
                f"MultiWorkerStrategy was started by {rank.launcher} with {rank.size} processes, "
                "and finds no TF_CONFIG with their addresses. Use HorovodStrategy, or set "
                "TF_CONFIG for each."
            )
        return find_cluster()
    task = {"type": resolver.task_type, "index": resolver.task_id}
    return TfConfig(values={"cluster": jobs, "task": task}).members()
