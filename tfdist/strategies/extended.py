"""WorkerExtended: the part of every tfdist strategy that creates variables and reduces values.

Synchronous data parallelism between graphs: each worker builds the same graph, variables start with
worker 0's values, and `Optimizer.apply_gradients` sums the gradients of all workers before each
worker makes the same update. Reductions are on the host. A worker may have several replicas of the
model, each on another device: they share the worker's variables, and their gradients are added on
the host before they are sent to other workers.

The methods are those that TensorFlow calls on a `StrategyExtended`, in TensorFlow's order; the
engine (`reductions.engine.Collectives`) carries the messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.process import endings
from tfdist.strategies.placement import HOST, Placement, lift_initial_value
from tfdist.strategies.private_tensorflow import (
    PerReplica,
    ValueContext,
    make_distributed_dataset,
    make_distributed_dataset_from_function,
    replica_in_sync_group,
    run_in_replica_threads,
)
from tfdist.strategies.reductions import early_reduction
from tfdist.strategies.reductions.buckets import describe_sizes
from tfdist.strategies.reductions.collectives import add_replicas, all_reduce, broadcast, sent_as
from tfdist.strategies.reductions.engine import Collectives, executing_instances
from tfdist.strategies.reductions.slices import Value
from tfdist.strategies.reductions.tied_tables import reduce_in_parts
from tfdist.strategies.reductions.weights import ReplicaWeights
from tfdist.strategies.values import sync_on_read
from tfdist.strategies.values.aggregated import aggregate_assignments
from tfdist.strategies.values.sync_on_read import Aggregation, SyncOnReadVariable

# The name scope of `WorkerExtended.gather_rows`.
GATHERED_ROWS = "gathered_rows"


@dataclass
class Reductions:
    """The reductions that were built into a graph.

    Attributes:
      num_buckets: The number of buckets of dense values.
      num_values: The number of values that replicas or workers combine, dense or not.
      described: Name, dtype and shape of each value, and the half-precision dtype in which it is
        sent, if any; must be equal on all workers, in the same order.
    """

    num_buckets: int = 0
    num_values: int = 0
    described: list[str] = field(default_factory=list)


class WorkerExtended(v1.distribute.StrategyExtended):  # type: ignore[misc]
    """One worker's part of a strategy: variables, placement, reductions, input.

    Args:
      strategy: The strategy that this belongs to.
      placement: Where things are in this worker.
      collectives: The engine between this worker and the others.
      task: This worker's part of a device's full name, such as "/job:worker/replica:0/task:1"; ""
        where a session has no other tasks.
      half: The dtype in which float32 gradients are sent to other workers; None is float32.

    Attributes:
      adds_equal_rows: Whether gathered rows of equal index are added up (`slices.add_equal_rows`).
        Equal on all workers. An Estimator leaves it out where no worker has several threads.
    """

    def __init__(
        self,
        strategy: v1.distribute.Strategy,
        placement: Placement,
        collectives: Collectives,
        task: str = "",
        half: tf.DType | None = None,
    ) -> None:
        endings.install()
        super().__init__(strategy)
        self._half = half
        self._task = task
        self.placement = placement
        self.adds_equal_rows = True
        self._collectives = collectives
        self.reductions = Reductions()
        self._is_inside_loop = False
        self._sends_each_initial_value = True
        self._weights: ReplicaWeights | None = None

    @property
    def collectives(self) -> Collectives:
        """The engine between the workers; in `execute_on_instances`, between those named."""
        instances = executing_instances()
        return self._collectives if instances is None else self._collectives.among(instances)

    # Variables.

    @contextmanager
    def steps_in_a_loop(self) -> Iterator[None]:
        """Marks the variables made in the `with` block as read in a loop of steps.

        See `Placement.create_variable` for the difference.
        """
        self._is_inside_loop = True
        try:
            yield
        finally:
            self._is_inside_loop = False

    @contextmanager
    def initial_values_sent_later(self) -> Iterator[None]:
        """Leaves the global variables made in the `with` block with this worker's initial values.

        For a session that runs `broadcast_variables` after the initializers. Otherwise the initial
        value of each variable is sent by itself.
        """
        self._sends_each_initial_value = False
        try:
            yield
        finally:
            self._sends_each_initial_value = True

    def _create_variable(self, next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        kwargs = lift_initial_value(kwargs)
        # The global step starts at 0 on every worker, and worker 0's hooks read its initial value
        # in a session call that the other workers do not make.
        is_sent_later = not self._sends_each_initial_value and _is_global(kwargs)
        is_counter = kwargs.get("name") == "global_step"
        if self.collectives.num_workers == 1 or is_counter or is_sent_later:
            return self._create_own_variable(next_creator, **kwargs)
        own, shared = self._from_worker_0(
            kwargs.get("initial_value"), kwargs.get("dtype"), kwargs.get("name") or "Variable"
        )
        variable = self._create_own_variable(next_creator, **{**kwargs, "initial_value": shared})
        variable.own_initial_value = own
        return variable

    def _create_own_variable(self, next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        if kwargs.get("synchronization") == tf.VariableSynchronization.ON_READ:
            devices = self.placement.devices
            if kwargs.get("aggregation") == Aggregation.SUM and len(devices) > 1:
                devices = (HOST,) * len(devices)  # Counts and sums of metrics.
            variable = sync_on_read.make_variable(devices, _constructor_arguments(kwargs))
            if self._num_replicas_in_sync > 1:
                variable.read_over_all = lambda: self.read_var(variable)
            return variable
        is_shared = self.placement.num_replicas > 1
        if is_shared and kwargs.get("aggregation") not in (None, Aggregation.NONE):
            kwargs["use_resource"] = True  # Ops assign to variables of TensorFlow 1, not methods.
        variable = self.placement.create_variable(
            next_creator, inside_loop=self._is_inside_loop, **kwargs
        )
        if is_shared:
            aggregate_assignments(variable, self.replica_in_worker)
        return variable

    def _from_worker_0(self, initial_value: Any, dtype: Any, name: str) -> tuple[Any, Any]:
        """Returns this worker's initial value of a variable, and worker 0's, on the host.

        The values are made before the variable: an op made inside the variable's constructor would
        be colocated with the variable, which may be on the device.
        """
        if initial_value is None:
            return None, None
        with (
            tf.init_scope(),
            v1.get_default_graph().colocate_with(None, ignore_existing=True),
            tf.device(HOST),
        ):
            value = initial_value() if callable(initial_value) else initial_value
            value = tf.convert_to_tensor(value, dtype=dtype)
            if value.dtype == tf.string:
                return value, value  # Engines send only numbers; a string is equal on all workers.
            return value, broadcast(self.collectives, value, name=f"{name}/from_worker_0")

    def broadcast_variables(self) -> tf.Operation:
        """Returns an op that sets every variable, in each replica, to worker 0's value.

        It runs after worker 0 has restored the variables. A collective: every worker must run it,
        with the same variables.
        """
        variables = [v for v in v1.global_variables() if v.dtype != tf.string]
        with tf.device(HOST), tf.name_scope("broadcast_variables"):
            assignments = []
            for variable in variables:
                is_own = isinstance(variable, SyncOnReadVariable)
                if not is_own and self.collectives.num_workers == 1:
                    continue
                local = variable.read_each()[0] if is_own else variable.read_value()
                value = self._broadcast(local, variable.op.name)
                if is_own:
                    op = variable.share_out(value, self.collectives.worker_index)
                else:
                    op = variable.assign(value, read_value=False)
                assignments.append(op)
            return tf.group(*assignments)

    def synchronize_variables(self) -> tf.Operation | None:
        """Returns an op that combines the sync-on-read variables before worker 0 saves them.

        A read of such a variable gives the same value before and after. A collective: every worker
        must run it. None if the graph has no such variable.
        """
        variables = sync_on_read.variables_of(tf.compat.v1.get_default_graph())
        if not variables or self._num_replicas_in_sync == 1:
            return None
        with tf.name_scope("synchronize_variables"):
            combined = [variable.value_over_all() for variable in variables]
            index = self.collectives.worker_index
            pairs = zip(variables, combined, strict=True)
            return tf.group(*(v.share_out(value, index) for v, value in pairs))

    def read_var(self, variable: Any) -> tf.Tensor:
        """Reads a variable. A sync-on-read variable is combined over all replicas: a collective."""
        if not isinstance(variable, SyncOnReadVariable):
            return tf.convert_to_tensor(variable)
        values = variable.read_each()
        if variable.aggregation == Aggregation.ONLY_FIRST_REPLICA:
            return self._broadcast(values[0], f"{variable.op.name}/read_on_worker_0")
        is_mean = variable.aggregation != Aggregation.SUM
        name = variable.op.name
        return self._all_reduce([values], mean=is_mean, name="read_combined", names=[name])[0]

    def _broadcast(self, value: tf.Tensor, name: str) -> tf.Tensor:
        if self.collectives.num_workers == 1:
            return value
        return broadcast(self.collectives, value, name=name)

    def value_container(self, value: Any) -> Any:
        return value

    def _validate_colocate_with_variable(self, colocate_with_variable: Any) -> None:
        if not hasattr(colocate_with_variable, "device"):
            raise ValueError(
                f"colocate_vars_with got {colocate_with_variable!r}: give it a variable made in "
                "the strategy's scope."
            )

    # Replicas.

    def _call_for_each_replica(
        self, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        strategy = self._container_strategy()
        if self.placement.num_replicas > 1:
            return run_in_replica_threads(strategy, fn, args, kwargs)
        context = v1.distribute.ReplicaContext(
            strategy, replica_id_in_sync_group=self.collectives.worker_index
        )
        args, kwargs = tf.nest.map_structure(_own_value, (tuple(args), kwargs))
        with context, self.placement.on_device():
            return fn(*args, **kwargs)

    def replica_in_worker(self) -> int:
        """Returns the index in this worker, from 0, of the replica whose code is running."""
        return self._get_local_replica_id(replica_in_sync_group())

    @property
    def first_replica_in_sync(self) -> int:
        """The index of this worker's first replica among those of all workers."""
        return self._get_replica_id_in_sync_group(0)

    def _get_local_replica_id(self, replica_id_in_sync_group: int) -> int:
        return replica_id_in_sync_group - self.first_replica_in_sync

    def _get_replica_id_in_sync_group(self, replica_id: int) -> int:
        return self.collectives.worker_index * self.placement.num_replicas + replica_id

    def _local_results(self, value: Any) -> tuple[Any, ...]:
        return tuple(_values_of(value))

    def _group(self, value: Any, name: str | None = None) -> tf.Operation:
        return tf.group(value, name=name)

    # Reductions.

    def start_counting_reductions(self) -> None:
        """Forgets the reductions of earlier graphs."""
        self.reductions = Reductions()

    def describe_messages(self) -> str:
        """Describes, for the log, the messages in which gradients are sent."""
        sizes = describe_sizes(
            bucket_size_bytes=self.collectives.bucket_size_bytes,
            threshold_bytes=self.collectives.threshold_bytes,
        )
        return sizes if self._half is None else f"{sizes}, float32 sent as {self._half.name}"

    @contextmanager
    def weighted(self, weights: Sequence[tf.Tensor]) -> Iterator[None]:
        """Makes the reductions of gradients in the `with` block count each replica by its weight.

        Updates in the block are left out in a step whose weights are all 0. In cross-replica
        context. A collective: every worker must call it.

        Args:
          weights: float32 scalars, not negative, one per replica of this worker.

        Raises:
          ValueError: If the block reduces no gradient.
        """
        total = self._all_reduce([weights], mean=False, name="sum_of_weights")[0]  # []
        self._weights = ReplicaWeights(weights, total, self._num_replicas_in_sync)
        try:
            yield
            if self._weights.num_weighted == 0:
                raise ValueError(
                    "loss_weight weights the gradients that optimizer.apply_gradients reduces, and "
                    "host_call reduces none. Call apply_gradients of an optimizer there, or wrap "
                    "it: tfdist.training.DistributedOptimizer(optimizer)."
                )
        finally:
            self._weights = None

    def if_counted(self, update: Callable[[], Any]) -> Any:
        """Returns what `update` returns; its ops do not run in a step whose weights are all 0."""
        return update() if self._weights is None else self._weights.if_any(update)

    def _all_reduce(
        self,
        values: Sequence[Sequence[Value]],
        *,
        mean: bool,
        name: str,
        names: Sequence[str] = (),
        half: tf.DType | None = None,
    ) -> list[Value]:
        """Combines values over the replicas of this worker, then over the workers.

        Args:
          values: For each value, one tensor per replica of this worker, or one that stands for all
            replicas.
          mean: Whether to average rather than to sum.
          name: Prefix of the ops' names.
          names: The name that each value belongs to, such as a gradient's variable: values of
            other names, or in another order, are not mixed with each other.
          half: The dtype in which float32 values are sent to other workers; None is float32.

        Returns:
          One value per input, of its shape and dtype, on the host.
        """
        self.reductions.num_values += len(values)
        own = [add_replicas(parts, mean=mean) for parts in values]
        if self.collectives.num_workers == 1:
            return own
        large = [i for i, value in enumerate(own) if self._is_large(value)]
        gates: dict[int, list[tf.Operation]] = {}
        for i in large:
            own[i], gates[i] = early_reduction.without_gates(own[i])
        early_reduction.make_first([own[i] for i in large])
        reduced, num_buckets = all_reduce(
            self.collectives,
            own,
            mean=mean,
            name=name,
            names=names,
            half=half,
            adds_equal_rows=self.adds_equal_rows,
        )
        with tf.device(HOST):
            for i in large:
                with tf.control_dependencies(gates[i]):
                    reduced[i] = tf.identity(reduced[i])
        self.reductions.num_buckets += num_buckets
        described = [_describe(value, half) for value in own]
        if names:
            described = [f"{n} ({text})" for n, text in zip(names, described, strict=True)]
        self.reductions.described += described
        return reduced

    def gather_rows(self, rows: tf.Tensor, name: str) -> tf.Tensor:
        """Gathers rows of numbers from all workers, in worker order: one message.

        A collective: every worker must call it, with as many rows and columns.

        Args:
          rows: [rows of this worker, columns]; how many rows is known when the graph is built.
          name: What the rows are; equal on all workers, which the check of models makes sure of.

        Returns:
          [rows of all workers, columns], on the host.
        """
        if self.collectives.num_workers == 1:
            return rows
        # Not counted in `num_values`: gathered rows are no reduced gradients.
        self.reductions.described.append(f"{name} ({_describe(rows, None)})")
        with tf.device(HOST), tf.name_scope(GATHERED_ROWS):
            gathered = self.collectives.gather(rows, "rows", same_rows=True)
        number, *columns = rows.shape
        gathered.set_shape([number * self.collectives.num_workers, *columns])
        return gathered

    def _is_large(self, value: Value) -> bool:
        """Returns whether a value is at or above the bucketing threshold."""
        if isinstance(value, tf.IndexedSlices):
            return False
        return (
            value.shape.num_elements() or 0
        ) * value.dtype.size >= self.collectives.threshold_bytes

    def _reduce_to(self, reduce_op: Any, value: Any, destinations: Any, options: Any = None) -> Any:
        parts = [_as_value(part) for part in _values_of(value)]
        return self._all_reduce([parts], mean=_is_mean(reduce_op), name="all_reduce")[0]

    def _batch_reduce_to(
        self,
        reduce_op: Any,
        value_destination_pairs: Sequence[tuple[Any, Any]],
        options: Any = None,
    ) -> list[Any]:
        values = [
            [_as_value(part) for part in _values_of(value)] for value, _ in value_destination_pairs
        ]
        # Optimizers reduce gradients, and give their variables as destinations. Other code reduces
        # other values, such as losses.
        are_gradients = all(isinstance(to, tf.Variable) for _, to in value_destination_pairs)
        half = self._half if are_gradients else None
        names = [to.op.name for _, to in value_destination_pairs] if are_gradients else []
        is_mean = _is_mean(reduce_op)

        def reduce(values: Sequence[Sequence[Value]], names: Sequence[str]) -> list[Value]:
            reduce_named = partial(
                self._all_reduce, mean=is_mean, name="all_reduce", names=names, half=half
            )
            if are_gradients and self._weights is not None:
                return self._weights.reduce(values, reduce_named)
            return reduce_named(values)

        if not are_gradients or self.collectives.num_workers == 1:
            return reduce(values, names)
        return reduce_in_parts(
            values,
            names,
            reduce,
            num_replicas=self._num_replicas_in_sync,
            threshold_bytes=self.collectives.threshold_bytes,
        )

    def _gather_to_implementation(
        self, value: Any, destinations: Any, axis: int, options: Any = None
    ) -> tf.Tensor:
        parts = [tf.convert_to_tensor(part) for part in _values_of(value)]
        value = parts[0] if len(parts) == 1 else tf.concat(parts, axis)
        if self.collectives.num_workers == 1:
            return value
        # The engine gathers along axis 0.
        order = [axis, *(i for i in range(value.shape.rank) if i != axis)]
        back = [order.index(i) for i in range(value.shape.rank)]
        with tf.device(HOST):
            gathered = self.collectives.gather(tf.transpose(value, order), "gather")
            return tf.transpose(gathered, back)

    def _broadcast_to(self, tensor: Any, destinations: Any) -> Any:
        return tensor

    # Updates.

    def _update(
        self, var: Any, fn: Callable[..., Any], args: Sequence[Any], kwargs: Any, group: bool
    ) -> Any:
        with v1.get_default_graph().colocate_with(var), tf.device(var.device):
            result = self.if_counted(lambda: fn(var, *args, **kwargs))
        return result if group else tf.nest.map_structure(self._local_results, result)

    def _update_non_slot(
        self,
        colocate_with: Any,
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Any,
        group: bool,
    ) -> Any:
        # What is left out of a branch's own inputs, such as updates to wait for, comes first.
        first = [] if self._weights is None else [x for x in tf.nest.flatten(args) if _is_op(x)]
        with tf.device(self.placement.variable_device), tf.control_dependencies(first):
            result = self.if_counted(lambda: fn(*args, **kwargs))
        return result if group else tf.nest.map_structure(self._local_results, result)

    def non_slot_devices(self, var_list: Any) -> tuple[str, ...]:
        return (self.placement.variable_device,)

    # Input.

    def input_context(self) -> tf.distribute.InputContext:
        """Returns the context for an input_fn: the number of workers, and this worker's index."""
        return tf.distribute.InputContext(
            num_input_pipelines=self.collectives.num_workers,
            input_pipeline_id=self.collectives.worker_index,
            num_replicas_in_sync=self._num_replicas_in_sync,
        )

    def _experimental_distribute_dataset(self, dataset: Any, options: Any) -> Any:
        return make_distributed_dataset(
            self._container_strategy(),
            dataset,
            self.input_context(),
            self._input_devices(),
            options,
        )

    def _distribute_datasets_from_function(self, dataset_fn: Any, options: Any) -> Any:
        return make_distributed_dataset_from_function(
            self._container_strategy(),
            dataset_fn,
            self.input_context(),
            self._input_devices(),
            options,
        )

    def _experimental_distribute_values_from_function(self, value_fn: Any) -> Any:
        first, count = self.first_replica_in_sync, self._num_replicas_in_sync
        values = [
            value_fn(ValueContext(first + i, count)) for i in range(self.placement.num_replicas)
        ]
        return values[0] if len(values) == 1 else PerReplica(values)

    def _input_devices(self) -> tuple[str, tuple[str, ...]]:
        # Full names: TensorFlow's distributed datasets would add task 0.
        task = self._task if self.collectives.num_workers > 1 else ""
        return task + HOST, tuple(task + device for device in self.placement.devices)

    # Properties that TensorFlow reads.

    @property
    def _num_replicas_in_sync(self) -> int:
        return self.collectives.num_workers * self.placement.num_replicas

    @property
    def worker_devices(self) -> tuple[str, ...]:
        return self.placement.devices

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        return (self.placement.variable_device,)

    @property
    def experimental_between_graph(self) -> bool:
        return True

    @property
    def experimental_should_init(self) -> bool:
        return True

    @property
    def should_checkpoint(self) -> bool:
        return self.collectives.worker_index == 0  # The chief: `Cluster.workers` has it first.

    @property
    def should_save_summary(self) -> bool:
        return self.should_checkpoint

    @property
    def _support_per_replica_values(self) -> bool:
        return self.placement.num_replicas > 1

    @property
    def _global_batch_size(self) -> bool:
        return True

    def _in_multi_worker_mode(self) -> bool:
        return self.collectives.num_workers > 1


def _is_mean(reduce_op: Any) -> bool:
    """Returns whether a `tf.distribute.ReduceOp` is MEAN; ValueError if it is not SUM either."""
    name = str(getattr(reduce_op, "value", reduce_op)).upper()
    if name not in ("SUM", "MEAN"):
        raise ValueError(f"Unsupported reduce op: {reduce_op}. Use ReduceOp.SUM or ReduceOp.MEAN.")
    return name == "MEAN"


def _is_op(value: Any) -> bool:
    return isinstance(value, (tf.Operation, tf.Tensor))


def _values_of(value: Any) -> Sequence[Any]:
    """Returns the values of this worker's replicas; a plain value is returned as the only one."""
    return value.values if isinstance(value, tf.distribute.DistributedValues) else (value,)


def _own_value(value: Any) -> Any:
    """Returns the value of this worker's only replica, as a distributed dataset yields it."""
    return _values_of(value)[0]


def _as_value(value: Any) -> Value:
    return value if isinstance(value, tf.IndexedSlices) else tf.convert_to_tensor(value)


def _describe(value: Value, half: tf.DType | None) -> str:
    suffix = f" as {half.name}" if half is not None and sent_as(value.dtype, half) == half else ""
    return f"{value.dtype.name} {value.shape}{suffix}"


def _constructor_arguments(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Returns those of a variable creator's arguments that a resource variable takes."""
    names = (
        "initial_value", "trainable", "collections", "validate_shape", "name", "dtype",
        "constraint", "distribute_strategy", "synchronization", "aggregation", "shape",
    )  # fmt: skip
    return {name: kwargs[name] for name in names if name in kwargs}


def _is_global(kwargs: dict[str, Any]) -> bool:
    """Returns whether a variable with these arguments is one of `v1.global_variables()`."""
    collections = kwargs.get("collections")
    return collections is None or v1.GraphKeys.GLOBAL_VARIABLES in collections


def own_initial_value(variable: Any) -> Any:
    """Returns this worker's own initial value of a variable, a tensor.

    Under a strategy with several workers `variable.initial_value` is worker 0's value, which only a
    collective can read.
    """
    return getattr(variable, "own_initial_value", variable.initial_value)
