"""MultiWorkerStrategy: workers of a TF_CONFIG cluster, joined by TensorFlow's gRPC collectives."""

from __future__ import annotations

import itertools
import json
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
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
    meet,
    parse_tf_config,
    peers_of,
    wait_for_servers,
)
from tfdist.cluster.progress import in_phase
from tfdist.cluster.rendezvous_protocol import members_of
from tfdist.cluster.rendezvous_sockets import port_taken_error
from tfdist.strategies.buckets import describe_sizes
from tfdist.strategies.collectives import Collectives
from tfdist.strategies.compression import Compression, find_half, from_copied, to_copied
from tfdist.strategies.exchange import Collective, DirectExchange
from tfdist.strategies.executing_instances import executing_instances
from tfdist.strategies.extended import WorkerExtended
from tfdist.strategies.local import NoCollectives
from tfdist.strategies.placement import HOST, DeviceError, own_gpu, place
from tfdist.strategies.replica_count import count_replicas

# A message costs about as much as copying 1 MB into a bucket and out again.
_MAX_BUCKET_BYTES = 1 << 20
_ALONE_BYTES = 512 << 10
# Each worker asks each other one in every step: beyond these the ring has fewer messages.
_MOST_TO_EXCHANGE_DIRECTLY = 8

# A server cannot be stopped, and remembers the keys of its collectives: a process has one for each
# of its addresses, and strategies made later take it over.
_SERVERS: dict[str, tf.distribute.Server] = {}
# How many logical CPUs each was started with: it cannot get more.
_NUM_CPUS: dict[str, int] = {}
# The strategy made last for an address: a server needs its devices.
_STRATEGIES: WeakValueDictionary[str, MultiWorkerStrategy] = WeakValueDictionary()
_ALL_WORKERS = 1  # The key of the group of them all.
_KEYS: dict[int, Iterator[int]] = {_ALL_WORKERS: itertools.count(1)}


class GrpcCollectives:
    """TensorFlow's ring collectives between the servers of a cluster.

    Each collective has a key; workers agree on keys because they build the same graphs in the
    same order.
    """

    max_bucket_bytes = _MAX_BUCKET_BYTES
    alone_bytes = _ALONE_BYTES

    def __init__(self, num_workers: int, worker_index: int, group_key: int = _ALL_WORKERS) -> None:
        self.num_workers = num_workers
        self.worker_index = worker_index
        self._group_key = group_key
        # Those of the graph that is being built, while somebody asks for them.
        self._noted: list[Collective] | None = None

    def note_collectives(self) -> None:
        """Keeps in mind which collectives are made from now on."""
        self._noted = []

    @property
    def can_exchange_directly(self) -> bool:
        """Whether collectives are noted, and all are outside functions, loops and branches."""
        return bool(self._noted) and all(_is_outside(one.result) for one in self._noted or [])

    def exchange_directly(self, hosts: Sequence[str]) -> None:
        """Lets workers talk directly, not around the ring, in place of the noted collectives.

        Sessions of their graph must see all workers. Nothing is changed if a collective is inside a
        function, a loop or a branch.

        Args:
          hosts: Full names of the workers' host devices, in the workers' order.
        """
        noted = (self._noted or []) if self.can_exchange_directly else []
        self._noted = None
        exchange = DirectExchange(hosts=tuple(hosts), index=self.worker_index)
        for collective in noted:
            exchange.take_over(collective)

    def _note(self, kind: str, tensor: tf.Tensor, result: tf.Tensor, key: int) -> tf.Tensor:
        if self._noted is None:
            return result
        result = tf.identity(result)
        self._noted.append(Collective(kind=kind, tensor=tensor, result=result, key=str(key)))
        return result

    def among(self, instances: tuple[int, ...]) -> Collectives:
        if len(instances) == 1:
            return NoCollectives()
        key = _group_key(instances)
        # Only its members count its collectives, from a number far from other groups' ones.
        _KEYS.setdefault(key, itertools.count((key % 1023 + 1) << 20))
        return GrpcCollectives(len(instances), instances.index(self.worker_index), key)

    def sum(self, tensors: Sequence[tf.Tensor], name: str) -> list[tf.Tensor]:
        if len(tensors) == 1:
            return [self._reduce(tensors[0], name)]
        flat = tf.concat([tf.reshape(t, [-1]) for t in tensors], axis=0)
        parts = tf.split(self._reduce(flat, name), [tf.size(t) for t in tensors])
        return [tf.reshape(part, tf.shape(t)) for part, t in zip(parts, tensors, strict=True)]

    def gather(self, tensor: tf.Tensor, name: str, *, same_rows: bool = False) -> tf.Tensor:
        """Sums blocks of zeros in which each worker has filled in its own rows.

        TensorFlow's own gather needs equal sizes, and crashes on empty ones. Adding zeros is exact.
        """
        if same_rows and tensor.shape.num_elements():
            return self._gather_same_rows(tensor, name)
        own_rows = tf.shape(tensor)[0]
        places = tf.one_hot(self.worker_index, self.num_workers, dtype=tf.int32)
        rows, _ = self._ring_sum(places * own_rows, f"{name}_rows")
        before = tf.reduce_sum(rows[: self.worker_index])
        after = tf.reduce_sum(rows[self.worker_index + 1 :])
        inner = [[0, 0]] * (tensor.shape.rank - 1)
        padded = tf.pad(tensor, [[before, after], *inner])
        # What is noted is the gather, and not the two sums that it is made of.
        return self._note("gather", tensor, *self._ring_sum(padded, name))

    def _gather_same_rows(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        key = next(_KEYS[self._group_key])
        rows, *inner = tensor.shape.as_list()
        gathered = tf.raw_ops.CollectiveGather(
            input=to_copied(tensor),
            group_size=self.num_workers,
            group_key=self._group_key,
            instance_key=key,
            shape=[self.num_workers * rows, *inner],
            communication_hint="ring",
            name=name,
        )
        return self._note("gather", tensor, from_copied(gathered, tensor.dtype), key)

    def broadcast(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        key = next(_KEYS[self._group_key])
        arguments = dict(
            group_size=self.num_workers,
            group_key=self._group_key,
            instance_key=key,
            shape=tensor.shape,
            communication_hint="ring",
            name=name,
        )
        if self.worker_index > 0:
            result = tf.raw_ops.CollectiveBcastRecv(T=tensor.dtype, **arguments)
        else:
            result = tf.raw_ops.CollectiveBcastSend(input=tensor, **arguments)
        return self._note("broadcast", tensor, result, key)

    def _reduce(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        return self._note("sum", tensor, *self._ring_sum(tensor, name))

    def _ring_sum(self, tensor: tf.Tensor, name: str) -> tuple[tf.Tensor, int]:
        """Returns the sum, and its key."""
        key = next(_KEYS[self._group_key])
        total = tf.raw_ops.CollectiveReduce(
            input=tensor,
            group_size=self.num_workers,
            group_key=self._group_key,
            instance_key=key,
            merge_op="Add",
            final_op="Id",
            subdiv_offsets=[0],
            communication_hint="ring",
            name=name,
        )
        return total, key


class MultiWorkerStrategy(v1.distribute.Strategy):  # type: ignore[misc]
    """Synchronous training on the workers of a cluster, over gRPC.

    Every worker runs the same program. Each has its own graph; variables start with worker 0's
    values; `Optimizer.apply_gradients` sums gradients over the workers, on the host. Nothing is
    started here: the first session (the Estimator's, or whoever reads `master`) makes the workers
    meet and starts TensorFlow's server.

    Args:
      cluster_resolver: A `tf.distribute.cluster_resolver.ClusterResolver` that knows the cluster
        and this task; None reads TF_CONFIG, or the variables of a Slurm step. With neither, the
        strategy has one worker.
      device: Where gradients are computed; None is this worker's GPU (workers of one machine take
        one after the other), or a second logical CPU.
      variables_on_host: Whether variables, slots and updates live on the host, or on the device.
      num_replicas: Copies of the model in each worker, with a device of their own each: `device`
        and the ones after it. They share the variables; each reads its own batches. None is what
        `tfdist run` says, or 1; where `tfdist run` says another number, it wins.
      start_timeout_s: How long to wait for the other workers at the start, in seconds; None takes
        the environment's TFDIST_START_TIMEOUT_S, or 300.
      compression: "fp16" or "bf16" sends float32 gradients to other workers in half precision, and
        adds them in float32; `tfdist.strategies.compression` states the error, and for how many
        workers it pays. Losses, metrics and initial values stay exact. None sends all as it is.

    Raises:
      ValueError: If `compression` or `num_replicas` is something else.
      ClusterError: If the cluster's description is wrong.
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
    ) -> None:
        half = find_half(compression)
        self.cluster: Cluster | None = None
        self.task: Task | None = None
        found = _resolve(cluster_resolver)
        if found is not None:
            self.cluster, self.task = found
        self.start_timeout_s = start_timeout_s if start_timeout_s is not None else _start_timeout()
        num_workers, worker_index, local_index, full_name = 1, 0, 0, ""
        if self.cluster is not None and self.task is not None:
            _check_roles(self.cluster, self.task)
            if self.task.type != "evaluator":
                num_workers = self.cluster.num_workers
                worker_index = self.cluster.worker_index(self.task)
                local_index = self.cluster.local_index(self.task)
                if num_workers > 1:
                    full_name = _full_name(self.task)
                    if self.cluster.address(self.task) not in _SERVERS:
                        check_port(self.cluster, self.task)
        replicas = count_replicas(num_replicas)
        if device is None:
            device = own_gpu(local_index, replicas.num_devices)
        placement = place(
            device,
            variables_on_host=variables_on_host,
            num_replicas=replicas.number,
            devices_per_replica=replicas.devices_each,
        )
        collectives: Collectives = NoCollectives()
        if num_workers > 1:
            collectives = GrpcCollectives(num_workers, worker_index)
            assert self.cluster is not None and self.task is not None
            _STRATEGIES[self.cluster.address(self.task)] = self
        super().__init__(WorkerExtended(self, placement, collectives, full_name, half))

    @property
    def master(self) -> str:
        """The target for a session: this worker's own server, or "" without a cluster.

        The first read waits until all workers of the cluster have met, then starts the server.

        Raises:
          RendezvousError: If a worker does not come in time, or has another cluster.
          DeviceError: If the server runs already, and without the devices that are needed now.
        """
        if self.extended.collectives.num_workers == 1:
            return ""
        assert self.cluster is not None and self.task is not None
        address = self.cluster.address(self.task)
        needed = max(1, self.update_config_proto(v1.ConfigProto()).device_count["CPU"])
        if address not in _SERVERS:
            _SERVERS[address] = self._start_server(self.cluster, self.task)
            _NUM_CPUS[address] = needed
        elif needed > _NUM_CPUS[address]:
            raise DeviceError(
                f"the server of this worker was started with {_NUM_CPUS[address]} logical CPUs, "
                f"and {needed} are needed now: it cannot get more. Train what needs most devices "
                "first, or start the run with `tfdist run --devices-per-replica "
                f"{self.extended.placement.devices_per_replica}`."
            )
        return str(_SERVERS[address].target)

    def _start_server(self, cluster: Cluster, task: Task) -> tf.distribute.Server:
        with in_phase("waiting"):
            meet(cluster, task, timeout_s=self.start_timeout_s)
        # gRPC reads the name in small letters only.
        os.environ["no_grpc_proxy"] = _without_proxy(cluster, os.environ)  # noqa: SIM112
        # A call to a worker that is gone fails, and does not wait until it is back: closing a
        # session that has a part on it would wait for ever.
        os.environ.setdefault("GRPC_FAIL_FAST", "true")
        jobs = {job: list(a) for job, a in cluster.jobs.items() if job != "evaluator"}
        try:
            server = tf.distribute.Server(
                jobs,
                job_name=task.type,
                task_index=task.index,
                config=self.update_config_proto(v1.ConfigProto()),
            )
        except tf.errors.UnknownError as error:
            if "Could not start gRPC server" not in error.message:
                raise
            # Somebody took the port after the workers had met there.
            raise port_taken_error(members_of(cluster)[cluster.worker_index(task)]) from error
        with in_phase("waiting"):
            wait_for_servers(cluster, task, timeout_s=self.start_timeout_s)
        return server

    def watch_peers(self) -> PeerWatch:
        """Returns a watch over the workers that this one may wait for in vain; start it."""
        if self.extended.collectives.num_workers == 1:
            return PeerWatch()
        assert self.cluster is not None and self.task is not None
        return PeerWatch(*peers_of(self.cluster, self.task))

    def note_collectives(self) -> None:
        """Begins to note the collectives of a graph, for `exchange_directly`."""
        if self._may_exchange_directly():
            self.extended.collectives.note_collectives()

    def exchange_directly(self) -> None:
        """Lets the workers talk directly in place of the noted collectives, if they are few.

        For a graph whose session has a config that `sees_all_workers`, and whose workers leave
        together. Every worker must call it.
        """
        if self._may_exchange_directly():
            assert self.cluster is not None
            hosts = [f"{_full_name(task)}{HOST}" for task in self.cluster.workers]
            self.extended.collectives.exchange_directly(hosts)

    def describe_reductions(self) -> str:
        """Says how gradients are reduced in the graph whose collectives are being noted, if any."""
        collectives = self.extended.collectives
        sizes = describe_sizes(
            max_bytes=collectives.max_bucket_bytes, alone_bytes=collectives.alone_bytes
        )
        way = "directly between" if collectives.can_exchange_directly else "in a ring of"
        return f"gRPC, {way} {collectives.num_workers} workers, {sizes}"

    def _may_exchange_directly(self) -> bool:
        if executing_instances() is not None:
            return False  # The others may have ended.
        return 1 < self.extended.collectives.num_workers <= _MOST_TO_EXCHANGE_DIRECTLY

    def update_config_proto(
        self, config_proto: v1.ConfigProto, *, sees_all_workers: bool = False
    ) -> v1.ConfigProto:
        """Returns a copy of a session's config with what this strategy needs.

        Args:
          config_proto: The config.
          sees_all_workers: Whether the session has the other workers' devices, too.
        """
        config = self.extended.placement.configure(config_proto)
        if self.extended.collectives.num_workers > 1:
            assert self.cluster is not None and self.task is not None
            leader = self.cluster.workers[0]
            config.experimental.collective_group_leader = _full_name(leader)
            # Opening a session waits for whom it sees; collectives reach the others all the same.
            sees_all = sees_all_workers and self._may_exchange_directly()
            del config.device_filters[:]
            config.device_filters.extend(
                f"/job:{task.type}/task:{task.index}"
                for task in (self.cluster.workers if sees_all else [self.task])
            )
        return config


def _full_name(task: Task) -> str:
    return f"/job:{task.type}/replica:0/task:{task.index}"


def _is_outside(tensor: tf.Tensor) -> bool:
    """Says whether a tensor is outside functions, loops and branches."""
    # No public way to ask for the second.
    return getattr(tensor.graph, "outer_graph", None) is None and (
        tensor.op._get_control_flow_context() is None
    )


def has_server(cluster: Cluster, task: Task) -> bool:
    """Says whether TensorFlow's server of this worker has been started."""
    return cluster.address(task) in _SERVERS


def start_server_of_run() -> None:
    """Starts the server of this worker of the environment's cluster, for its latest strategy.

    The first call waits until all workers of the cluster have met.

    Raises:
      RuntimeError: If there is no such strategy.
      RendezvousError: If a worker does not come in time, or has another cluster.
    """
    found = find_cluster()
    strategy = _STRATEGIES.get(found[0].address(found[1])) if found is not None else None
    if strategy is None:
        raise RuntimeError(
            "this run has no MultiWorkerStrategy yet, and its server needs to know the devices of "
            "one. Make the strategy first, on every instance."
        )
    _ = strategy.master


def _group_key(instances: tuple[int, ...]) -> int:
    """Returns a group's key: the same in each member, another one for each group, below 2^31."""
    return zlib.crc32(repr(instances).encode()) % (2**31 - 2) + 2


def _resolve(resolver: Any) -> tuple[Cluster, Task] | None:
    """Finds the cluster: in the resolver, else in the environment."""
    if resolver is None:
        found = find_cluster()
        rank = find_mpi_rank()
        if found is None and rank is not None and rank.size > 1:
            raise ClusterError(
                f"MultiWorkerStrategy was started by mpirun with {rank.size} processes, and finds "
                "no TF_CONFIG with their addresses. Use HorovodStrategy, or set TF_CONFIG for each."
            )
        return found
    jobs = resolver.cluster_spec().as_dict()
    if not jobs:
        return find_cluster()
    task = {"type": resolver.task_type, "index": resolver.task_id}
    return parse_tf_config(json.dumps({"cluster": jobs, "task": task}))


def _check_roles(cluster: Cluster, task: Task) -> None:
    if task.type == "ps" or "ps" in cluster.jobs:
        raise ClusterError(
            "MultiWorkerStrategy has no parameter servers, and the cluster lists job 'ps'. "
            "Remove 'ps' from the cluster: the workers hold and update the variables themselves."
        )


def _without_proxy(cluster: Cluster, environ: Mapping[str, str]) -> str:
    """Returns a value for `no_grpc_proxy` with which gRPC reaches the workers directly.

    gRPC would send the workers' messages to a proxy set for downloads (`http_proxy`), which does
    not know them, and wait for ever.
    """
    # gRPC looks at the second only where the first is not set.
    named = environ.get("no_grpc_proxy") or environ.get("no_proxy", "")
    hosts = [address.rsplit(":", 1)[0].strip("[]") for a in cluster.jobs.values() for address in a]
    return ",".join(dict.fromkeys([*filter(None, named.split(",")), *hosts]))


def _start_timeout() -> float:
    text = os.environ.get("TFDIST_START_TIMEOUT_S", "300")
    try:
        timeout_s = float(text)
    except ValueError:
        timeout_s = 0.0
    if not 0 < timeout_s < float("inf"):
        raise ClusterError(
            f"TFDIST_START_TIMEOUT_S is {text!r}: a number of seconds above 0 is allowed. "
            "Set it to 300, or unset it."
        )
    return timeout_s
