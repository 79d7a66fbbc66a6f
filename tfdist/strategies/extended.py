"""WorkerExtended: the methods of a strategy that TensorFlow calls.

Synchronous data parallelism between graphs: each worker builds the same graph, variables start with
worker 0's values, and `Optimizer.apply_gradients` sums the gradients of all workers before each
worker makes the same update. Reductions are on the host. A worker may have several replicas of the
model, each on another device: they share the worker's variables, and their gradients are added on
the host before they are sent to other workers.

The methods are those that TensorFlow calls on a `StrategyExtended`, in TensorFlow's order. They
pass values on: to the dialect of the code that calls them (`dialect`), to `reductions.reducer`, and
to `placement`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.process import endings
from tfdist.process.progress_file import find_progress_file
from tfdist.strategies.dialect import Dialect, is_tensorflow_2
from tfdist.strategies.divided.tables import Partitioner, Tables
from tfdist.strategies.divided.variable import own_rows
from tfdist.strategies.eager.dialect import EagerDialect
from tfdist.strategies.eager.functions import FunctionsOfReplicas, is_tf_function
from tfdist.strategies.eager.own_loop import LOOP
from tfdist.strategies.eager.replica_variable import ReplicaVariable
from tfdist.strategies.eager.run import needs_all_workers
from tfdist.strategies.eager.variables import EagerVariables, SharedVariable
from tfdist.strategies.graph.dialect import GraphDialect
from tfdist.strategies.graph.variables import GraphVariables
from tfdist.strategies.host_memory import keep_memory
from tfdist.strategies.placement import HOST, Placement
from tfdist.strategies.private_runtime import InputPlan
from tfdist.strategies.private_tensorflow import (
    PerReplica,
    ValueContext,
    replica_in_sync_group,
    run_in_replica_threads,
    write_converted_code_into,
)
from tfdist.strategies.reductions.collectives import is_mean
from tfdist.strategies.reductions.division import division_of
from tfdist.strategies.reductions.engine import Collectives, executing_instances
from tfdist.strategies.reductions.reducer import Reducer
from tfdist.strategies.reductions.slices import Value
from tfdist.strategies.values.replica_context import are_updates_equal
from tfdist.strategies.values.seeds import vary_seeds_of_replicas


class WorkerExtended(v1.distribute.StrategyExtended):  # type: ignore[misc]
    """One worker's part of a strategy.

    Args:
      strategy: The strategy that this belongs to.
      placement: Where things are in this worker.
      collectives: The engine between this worker and the others.
      task: This worker's part of a device's full name, such as "/job:worker/replica:0/task:1"; ""
        where a session has no other tasks.
      half: The dtype in which float32 gradients are sent to other workers; None is float32.
      partitioner: Says which variables are divided between the workers; None divides none.

    Attributes:
      reducer: Combines values over all replicas.
      divides_batches: Whether a dataset of TensorFlow 2 has global batches, which the workers
        divide. If False, each worker has a dataset of its own, whose batches are a replica's.
      tables: Says which variables are divided between the workers.
      graph_variables: Makes and combines the variables of the current graph.
      when_entered: Adapts libraries to strategies, when a program of TensorFlow 2 enters one.
        `tfdist.strategies` sets it for Keras.
    """

    when_entered: ClassVar[staticmethod[[], None]] = staticmethod(lambda: None)

    def __init__(
        self,
        strategy: v1.distribute.Strategy,
        placement: Placement,
        collectives: Collectives,
        task: str = "",
        half: tf.DType | None = None,
        partitioner: Partitioner | None = None,
    ) -> None:
        endings.install()
        file = find_progress_file()
        if file is not None:  # Its folder is removed, even if this process is killed.
            write_converted_code_into(os.fspath(file.folder))
        vary_seeds_of_replicas()
        super().__init__(strategy)
        self._task = task
        self.placement = placement
        self._is_entered = False  # By a program of TensorFlow 2.
        self.reducer = Reducer(collectives, placement.num_replicas, half)
        self.divides_batches = True
        self.tables = Tables(partitioner, self.reducer)
        self.graph_variables = GraphVariables(placement, self.reducer, self.tables)
        self._graph = GraphDialect(self.graph_variables)
        eager_variables = EagerVariables(placement, self.reducer, self.tables)
        self._eager = EagerDialect(eager_variables, self.reducer)
        self._functions = FunctionsOfReplicas(self, self._call_for_each_replica)

    @property
    def _dialect(self) -> Dialect:
        return self._eager if is_tensorflow_2() else self._graph

    @property
    def collectives(self) -> Collectives:
        """The engine between the workers; in `execute_on_instances`, between those named."""
        return self.reducer.collectives

    def enter_tensorflow_2(self) -> None:
        """Joins the other workers, in TensorFlow 2, and lets libraries be adapted.

        Called again, it is cheap.

        Raises:
          NotJoinedError: If this is a function, and the workers have not met before.
        """
        if tf.executing_eagerly():
            if not self._is_entered and self.collectives.num_workers > 1:
                keep_memory(os.environ, large_blocks=True)
            self._is_entered = True
            LOOP.install(self.collectives)
            self._container_strategy().join_workers()
            self.when_entered()
        elif not self._is_entered:
            self._dialect.refuse_late_entry()

    # Variables.

    def _create_variable(self, next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        return self._dialect.create_variable(next_creator, **kwargs)

    def _allow_variable_partition(self) -> bool:
        return self.tables.divides_partitioned

    def read_var(self, variable: Any) -> tf.Tensor:
        """Reads a variable. A sync-on-read variable is combined over all replicas: a collective."""
        return self._dialect.read(variable)

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
        has_threads = self.placement.num_replicas > 1 and not are_updates_equal()
        if has_threads and is_tf_function(fn) and is_tensorflow_2():
            return self._functions(fn, args, kwargs)
        return self._dialect.run_step(
            lambda: self._results_of_replicas(fn, args, kwargs),
            self._batches_in(args),
            getattr(fn, "__qualname__", type(fn).__name__),
        )

    def _results_of_replicas(
        self, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        strategy = self._container_strategy()
        if self.placement.num_replicas > 1 and not are_updates_equal():
            return run_in_replica_threads(strategy, fn, args, kwargs)
        context = tf.distribute.ReplicaContext(
            strategy, replica_id_in_sync_group=self.first_replica_in_sync
        )
        args, kwargs = tf.nest.map_structure(_own_value, (tuple(args), kwargs))
        with context, tf.device(self.worker_devices[0]):
            return fn(*args, **kwargs)

    def _batches_in(self, args: Sequence[Any]) -> list[Any]:
        """Returns the first argument of a replica's function, for each replica of this worker."""
        if not args:
            return []
        return [_value_in(args[0], replica) for replica in range(self.placement.num_replicas)]

    def replica_in_worker(self) -> int:
        """Returns the index in this worker, from 0, of the running replica."""
        return self._get_local_replica_id(replica_in_sync_group())

    @property
    def first_replica_in_sync(self) -> int:
        """The index of this worker's first replica among all workers' replicas."""
        return self._get_replica_id_in_sync_group(0)

    def _get_local_replica_id(self, replica_id_in_sync_group: int) -> int:
        return replica_id_in_sync_group - self.first_replica_in_sync

    def _get_replica_id_in_sync_group(self, replica_id: int) -> int:
        return self.collectives.worker_index * self.placement.num_replicas + replica_id

    def _local_results(self, value: Any) -> tuple[Any, ...]:
        if tf.nest.is_nested(value):
            return tuple(
                _value_in(value, i, _values_of) for i in range(self.placement.num_replicas)
            )
        if isinstance(value, SharedVariable):
            return (value,) * self.placement.num_replicas
        return tuple(_values_of(value))

    def _group(self, value: Any, name: str | None = None) -> tf.Operation:
        return tf.group(value, name=name)

    # Reductions.

    def _reduce_to(self, reduce_op: Any, value: Any, destinations: Any, options: Any = None) -> Any:
        self.enter_tensorflow_2()
        if isinstance(value, (tuple, list, dict)):
            return tf.nest.map_structure(lambda v: self._reduce_to(reduce_op, v, v), value)
        with self._message("a reduction"):
            return self._combined([self.parts_of(value)], reduce_op)[0]

    def _batch_reduce_to(
        self,
        reduce_op: Any,
        value_destination_pairs: Sequence[tuple[Any, Any]],
        options: Any = None,
    ) -> list[Any]:
        with self._message("a reduction"):
            return self._batch_reduced(reduce_op, value_destination_pairs)

    def _message(self, kind: str) -> AbstractContextManager[None]:
        """Returns a context for a message between all workers, of this kind."""
        is_sent = tf.executing_eagerly() and executing_instances() is None
        return needs_all_workers(kind) if is_sent else nullcontext()

    def _batch_reduced(
        self, reduce_op: Any, value_destination_pairs: Sequence[tuple[Any, Any]]
    ) -> list[Any]:
        values = [self.parts_of(value) for value, _ in value_destination_pairs]
        # Optimizers reduce gradients, and give their variables as destinations. Other code reduces
        # other values, such as losses.
        if not all(isinstance(to, tf.Variable) for _, to in value_destination_pairs):
            return self._combined(values, reduce_op)
        targets = [to for _, to in value_destination_pairs]
        self.tables.note_gradients()
        return self.reducer.reduce_gradients(
            values,
            [name_of(to) for to in targets],
            mean=is_mean(reduce_op),
            divisions=[division_of(to) for to in targets],
        )

    def parts_of(self, value: Any) -> list[Value]:
        """Returns the values of this worker's replicas as tensors or slices.

        A tensor that all replicas share counts for each of them, in TensorFlow 2. In a graph it is
        one of this worker.
        """
        parts = [
            part if isinstance(part, tf.IndexedSlices) else tf.convert_to_tensor(part)
            for part in _values_of(value)
        ]
        if len(parts) == 1 and is_tensorflow_2():
            parts *= self.placement.num_replicas
        return parts

    def _combined(self, values: Sequence[Any], reduce_op: Any) -> list[Any]:
        """Combines values over all replicas; the caller may be other code than an optimizer."""
        return self.reducer.reduce(
            values,
            mean=is_mean(reduce_op),
            name="all_reduce",
            adds_equal_rows=self._dialect.adds_equal_rows,
        )

    def _gather_to_implementation(
        self, value: Any, destinations: Any, axis: int, options: Any = None
    ) -> tf.Tensor:
        self.enter_tensorflow_2()
        with self._message("a gathering"):
            return self.reducer.gather([tf.convert_to_tensor(v) for v in _values_of(value)], axis)

    def _broadcast_to(self, tensor: Any, destinations: Any) -> Any:
        return tensor

    # Updates.

    def _update(
        self, var: Any, fn: Callable[..., Any], args: Sequence[Any], kwargs: Any, group: bool
    ) -> Any:
        # Replicas of this worker have got the same reduced gradient, one tensor for each.
        args, kwargs = tf.nest.map_structure(_own_value, (tuple(args), dict(kwargs or {})))
        is_divided = division_of(var) is not None
        if is_divided:
            for one in tf.nest.flatten((args, kwargs)):
                if isinstance(one, tf.IndexedSlices):
                    var.check_slices(one)
        rows = own_rows() if is_divided else nullcontext()
        with self._dialect.colocated_with(var), tf.device(var.device), rows:
            result = self.reducer.if_counted(lambda: fn(var, *args, **kwargs))
        return result if group else tf.nest.map_structure(self._local_results, result)

    def _update_non_slot(
        self,
        colocate_with: Any,
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Any,
        group: bool,
    ) -> Any:
        # `if_counted` may run `fn` in a branch, which does not wait for arguments that it does not
        # use. Wait here.
        first = tf.nest.flatten(args) if self.reducer.has_weights else []
        first = [part for part in first if isinstance(part, (tf.Operation, tf.Tensor))]
        with tf.device(self.placement.variable_device), tf.control_dependencies(first):
            result = self.reducer.if_counted(lambda: fn(*args, **kwargs))
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
        self.enter_tensorflow_2()
        plan = self._input_plan(options)
        return self._dialect.distribute(dataset, plan, divides_batches=self.divides_batches)

    def _distribute_datasets_from_function(self, dataset_fn: Any, options: Any) -> Any:
        self.enter_tensorflow_2()
        return self._dialect.distribute_from_function(dataset_fn, self._input_plan(options))

    def _input_plan(self, options: Any) -> InputPlan:
        # Full names: TensorFlow's distributed datasets would add task 0.
        task = self._task if self.collectives.num_workers > 1 else ""
        return InputPlan(
            strategy=self._container_strategy(),
            context=self.input_context(),
            host=task + HOST,
            devices=tuple(task + device for device in self.worker_devices),
            options=options,
        )

    def _experimental_distribute_values_from_function(self, value_fn: Any) -> Any:
        first, count = self.first_replica_in_sync, self._num_replicas_in_sync
        values = [
            value_fn(ValueContext(first + i, count)) for i in range(self.placement.num_replicas)
        ]
        return values[0] if len(values) == 1 else PerReplica(values)

    # Properties that TensorFlow reads.

    @property
    def worker_devices_by_replica(self) -> list[str]:
        """The device of each replica; of another worker's, the one that is its own there."""
        return [*self.worker_devices] * self.collectives.num_workers

    @property
    def _num_replicas_in_sync(self) -> int:
        return self.reducer.num_replicas

    @property
    def worker_devices(self) -> tuple[str, ...]:
        return self._dialect.devices(self.placement, is_entered=self._is_entered)

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        return (self.placement.variable_device,)

    experimental_between_graph = True
    experimental_should_init = True
    _global_batch_size = True

    @property
    def should_checkpoint(self) -> bool:
        return self.collectives.worker_index == 0  # The chief: `Cluster.workers` has it first.

    @property
    def should_save_summary(self) -> bool:
        return self.should_checkpoint

    @property
    def _support_per_replica_values(self) -> bool:
        return self.placement.num_replicas > 1

    def _in_multi_worker_mode(self) -> bool:
        return self.collectives.num_workers > 1

    @property
    def _task_id(self) -> int:
        return self.collectives.worker_index  # In the names of tf_keras' temporary folders.

    @property
    def enable_partial_batch_handling(self) -> bool:
        return self._dialect.has_partial_batches


def name_of(variable: tf.Variable) -> str:
    """Returns a variable's name as messages have it, without the number of its output."""
    return variable.name.partition(":")[0]


def _values_of(value: Any) -> Sequence[Any]:
    """Returns the values of this worker's replicas; a plain value is returned as the only one."""
    return value.of_each_replica if isinstance(value, ReplicaVariable) else _given(value)


def _given(value: Any) -> Sequence[Any]:
    """Returns what each replica's code is given of a value: a variable as it is."""
    return value.values if isinstance(value, tf.distribute.DistributedValues) else (value,)


def _own_value(value: Any) -> Any:
    """Returns the value of this worker's only replica, as a distributed dataset yields it."""
    return _given(value)[0]


def _value_in(
    structure: Any, replica: int, values_of: Callable[[Any], Sequence[Any]] = _given
) -> Any:
    def value(leaf: Any) -> Any:
        values = values_of(leaf)
        return values[replica] if len(values) > 1 else values[0]

    return tf.nest.map_structure(value, structure)
