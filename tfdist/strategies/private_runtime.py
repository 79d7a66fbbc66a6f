"""Private names of TensorFlow's eager runtime and of its distributed datasets, with the reasons.

As `private_tensorflow`, which has those of graphs and sessions: no other module imports
`tensorflow.python`. A new TensorFlow is checked against these two files.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow.compat.v1 as v1

# A dataset around what an operation of tf.data returns.
from tensorflow.python.data.ops.dataset_ops import _VariantDataset

# input_lib splits a dataset of global batches over workers, as MultiWorkerMirroredStrategy does.
from tensorflow.python.distribute import input_lib

# The same, for a v1 graph.
from tensorflow.python.distribute.v1 import input_lib as input_lib_v1

# The spec of a value of which each replica has its own.
from tensorflow.python.distribute.values import PerReplicaSpec

# The eager runtime, whose server for other workers has no public name.
from tensorflow.python.eager import context

# The format of the files that TensorFlow's profiler writes.
from tensorflow.tsl.profiler.protobuf import xplane_pb2

# The name of an op's event: the op's name and its type.
_LOCAL_TASK = "/job:localhost/replica:0/task:0"
_PYTHON_OPS = ("PyFunc", "PyFuncStateless", "EagerPyFunc")
_OP = re.compile(r"([^:\s]+):(\w+)")


def has_started_server(strategy: tf.distribute.Strategy) -> bool:
    """Returns whether a MultiWorkerMirroredStrategy runs a server on its task's port.

    Its constructor starts one if TensorFlow executes eagerly.
    """
    return bool(getattr(strategy.extended, "_std_server_started", False))


def configure_collectives(leader: str, own: str) -> bool:
    """Prepares TensorFlow 2's runtime for messages between workers; nothing is started.

    It gets the full name of the first worker's task, and the name of this worker's. Returns whether
    it is prepared: it cannot be once the runtime has started, with the first operation.
    """
    runtime = context.context()
    if runtime._context_handle is not None and runtime._collective_leader != leader:
        return False
    runtime.configure_collective_ops(collective_leader=leader, device_filters=(own,))
    return True


def start_eager_server(server: tf.train.ServerDef) -> None:
    """Starts this worker's server in TensorFlow 2's runtime."""
    runtime = context.context()
    server.default_session_config.MergeFrom(runtime.config)
    logger = logging.getLogger("absl")
    logger.addFilter(_is_no_startup_warning)
    try:
        runtime.enable_collective_ops(server)
    finally:
        logger.removeFilter(_is_no_startup_warning)
    runtime.ensure_initialized()


def _is_no_startup_warning(record: logging.LogRecord) -> bool:
    # `renew_dataset` takes care of what it warns of.
    return not str(record.msg).startswith("Enabling collective ops after program startup")


def is_of_an_earlier_runtime(dataset: tf.data.Dataset) -> bool:
    """Returns whether a dataset was made before `start_eager_server` gave devices other names."""
    if not tf.executing_eagerly():
        return False
    names = [device.name for device in tf.config.list_logical_devices()]
    # Without a server a logical device's name has no job, and a tensor's has.
    full = {name if name.startswith("/job:") else f"{_LOCAL_TASK}{name}" for name in names}
    return dataset._variant_tensor.device not in full


def renew_dataset(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns a copy of a dataset of an earlier runtime; one that uses a lookup table has none."""
    with tf.device("/device:CPU:0"):
        serialized = tf.raw_ops.DatasetToGraphV2(
            input_dataset=dataset._variant_tensor,
            external_state_policy=1,  # Ignore: the state of a generator is in this process.
            strip_device_assignment=True,
        )
        graph = v1.GraphDef.FromString(serialized.numpy())
        for function in graph.library.function:
            for node in function.node_def:
                node.ClearField("device")
        variant = tf.raw_ops.DatasetFromGraph(graph_def=graph.SerializeToString())
        return _VariantDataset(variant, dataset.element_spec)


def yields_arrays_of_python(dataset: Any) -> bool:
    """Returns whether a dataset calls Python, whose arrays may be the memory of its tensors."""
    if not isinstance(dataset, tf.data.Dataset):
        return False
    for function in dataset._functions():
        if hasattr(function.function, "graph"):
            if graph_calls_python(function.function.graph):
                return True
        elif _call_python(function.function.definition.node_def):  # Of `map_with_legacy_function`.
            return True
    return any(yields_arrays_of_python(source) for source in dataset._inputs())


def graph_calls_python(graph: tf.Graph) -> bool:
    """Returns whether an op of a graph, or of its functions, calls Python."""
    proto = graph.as_graph_def()
    return _call_python(proto.node) or any(
        _call_python(function.node_def) for function in proto.library.function
    )


def _call_python(nodes: Iterable[Any]) -> bool:
    return any(node.op in _PYTHON_OPS for node in nodes)


@dataclass(frozen=True, kw_only=True)
class InputPlan:
    """The way in which this worker reads a distributed dataset.

    Attributes:
      strategy: The strategy.
      context: The number of workers, and this worker's index.
      host: The device that runs the input pipeline.
      devices: The device of each replica of this worker.
      options: As in `Strategy.experimental_distribute_dataset`.
    """

    strategy: tf.distribute.Strategy
    context: tf.distribute.InputContext
    host: str
    devices: tuple[str, ...]
    options: tf.distribute.InputOptions | None

    @property
    def is_for_each_replica(self) -> bool:
        """True where each of several replicas of this worker has a dataset of its own."""
        per_replica = tf.distribute.InputReplicationMode.PER_REPLICA
        options = self.options
        is_wanted = options is not None and options.experimental_replication_mode == per_replica
        return is_wanted and len(self.devices) > 1

    @property
    def contexts(self) -> list[tf.distribute.InputContext]:
        """The context of each dataset of this worker."""
        if not self.is_for_each_replica:
            return [self.context]
        number, in_sync = len(self.devices), self.context.num_replicas_in_sync
        return [tf.distribute.InputContext(number, i, in_sync) for i in range(number)]

    @property
    def workers(self) -> input_lib.InputWorkers:
        """The devices as TensorFlow's classes take them: a replica with a dataset is a worker."""
        if self.is_for_each_replica and self.options is not None:
            on_device = self.options.experimental_place_dataset_on_device
            return input_lib.InputWorkers(
                [(device if on_device else self.host, (device,)) for device in self.devices]
            )
        is_fetched = self.options is None or self.options.experimental_fetch_to_device
        devices = self.devices if is_fetched else (self.host,) * len(self.devices)
        return input_lib.InputWorkers([(self.host, devices)])


def make_distributed_dataset(dataset: tf.data.Dataset, plan: InputPlan) -> Any:
    """Re-batches a dataset of global batches for this worker and shards it."""
    in_graph = not v1.executing_eagerly_outside_functions()
    kind = input_lib_v1.DistributedDatasetV1 if in_graph else input_lib.DistributedDataset
    return kind(
        dataset=dataset,
        input_workers=plan.workers,
        strategy=plan.strategy,
        num_replicas_in_sync=plan.context.num_replicas_in_sync,
        input_context=plan.context,
        options=plan.options,
    )


def make_distributed_dataset_from_function(dataset_fn: Any, plan: InputPlan) -> Any:
    """Makes a dataset of this worker's batches, which `dataset_fn(context)` returns."""
    in_graph = not v1.executing_eagerly_outside_functions()
    kind = (
        input_lib_v1.DistributedDatasetsFromFunctionV1
        if in_graph
        else input_lib.DistributedDatasetsFromFunction
    )
    return kind(
        plan.workers, plan.strategy, plan.contexts, dataset_fn=dataset_fn, options=plan.options
    )


def replica_spec(dataset: Any) -> Any:
    """Returns the spec of a replica's element of a distributed dataset."""

    def of_first(spec: Any) -> Any:
        return spec._value_specs[0] if isinstance(spec, PerReplicaSpec) else spec

    return tf.nest.map_structure(of_first, dataset.element_spec)


def share_of_worker(dataset: tf.data.Dataset, plan: InputPlan) -> tf.data.Dataset:
    """Returns a dataset of this worker's rows of each global batch; not of its replicas."""
    workers = plan.context.num_input_pipelines
    context = tf.distribute.InputContext(workers, plan.context.input_pipeline_id, workers)
    own = replace(plan, context=context, devices=plan.devices[:1], options=None)
    (share,) = make_distributed_dataset(dataset, own)._cloned_datasets
    return share


def asks_before_each_batch(dataset: Any, asks: bool) -> None:
    """Sets whether workers ask each other before each batch if one of them has more.

    Otherwise each worker ends with its own last batch.
    """
    dataset._enable_get_next_as_optional = asks


def plain_iterator(iterator: Any) -> Any:
    """Returns the iterator of this worker's dataset, if a distributed one has the same elements.

    A function takes it in a third of the time. A value of another kind is returned as it is.
    """
    if not isinstance(iterator, input_lib.DistributedIterator):
        return iterator
    is_plain = not (
        iterator._enable_get_next_as_optional
        or len(iterator._iterators) > 1
        or input_lib._should_use_multi_device_iterator(iterator._options)
    )
    return iterator._iterators[0]._iterator if is_plain else iterator


class ProfiledOp(NamedTuple):
    """An op that TensorFlow's profiler has seen; times are in microseconds."""

    name: str
    type: str
    thread: str
    start: float
    end: float


def profiled_ops(path: Path) -> Iterator[ProfiledOp]:
    """Yields the ops in a file of TensorFlow's profiler, of every thread."""
    for plane in xplane_pb2.XSpace.FromString(path.read_bytes()).planes:
        for number, line in enumerate(plane.lines):
            for event in line.events:
                found = _OP.fullmatch(plane.event_metadata[event.metadata_id].name)
                if found is not None:
                    start = line.timestamp_ns / 1e3 + event.offset_ps / 1e6
                    thread = f"{line.name.partition('/')[0]} {number}"
                    end = start + event.duration_ps / 1e6
                    yield ProfiledOp(found[1], found[2], thread, start, end)
