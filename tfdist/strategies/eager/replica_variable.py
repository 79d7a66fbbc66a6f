"""ReplicaVariable: a variable of TensorFlow 2 of which each replica has its own values.

    in a replica's code     reads and assigns the replica's own values
    elsewhere, ON_READ      a read is the sum, mean or first value over all replicas of all workers:
                            a collective, so every worker must read
    elsewhere, otherwise    a read is the first replica's; an assignment is for all replicas

Metrics are of the first kind, and so are the statistics of tf_keras' batch norm. Keras 3's batch
norm and its seeds are of the last. `synchronize` makes statistics equal on all replicas, so that
all evaluate and save the same ones.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakValueDictionary

import tensorflow as tf

from tfdist.strategies.eager.replica_data import depends_on_replica
from tfdist.strategies.eager.run import needs_all_workers
from tfdist.strategies.eager.step import NOW, Assignment, Reads, own_rows
from tfdist.strategies.private_tensorflow import (
    HiddenHandle,
    ResourceVariable,
    arguments_of_copy,
    is_written_as_saved_model,
    variable_of_handle,
)
from tfdist.strategies.reductions.reducer import Reducer
from tfdist.strategies.values.aggregated import AggregationError
from tfdist.strategies.values.replica_context import (
    are_updates_equal,
    is_in_replica,
    replica_in_sync,
    replica_in_worker,
)
from tfdist.strategies.values.seeds import SEED_STEP as SEED_STEP

_Aggregation = tf.VariableAggregation

# The updates of some of a variable's rows.
SCATTERS = (
    *("scatter_add", "scatter_sub", "scatter_update", "scatter_max", "scatter_min", "scatter_mul"),
    *("scatter_div", "scatter_nd_add", "scatter_nd_sub", "scatter_nd_update", "scatter_nd_max"),
    *("scatter_nd_min", "batch_scatter_update"),
)
# The replica variables of this process that are still in use, by `id`, oldest first.
_variables: WeakValueDictionary[int, ReplicaVariable] = WeakValueDictionary()


class ReplicaVariable(ResourceVariable):  # type: ignore[misc]
    """One variable per replica of this worker, under one name and in one checkpoint entry.

    The private members that start with `_handle` and `_dense` belong to TensorFlow's base class.

    Args:
      reducer: Combines values over all replicas.
      num_replicas: The number of replicas of this worker.
      is_on_read: Whether a read outside a replica's code combines the values of all.
      arguments: The arguments of a resource variable; the initial value is a tensor.
    """

    def __init__(
        self, reducer: Reducer, num_replicas: int, is_on_read: bool, arguments: dict[str, Any]
    ) -> None:
        super().__init__(**arguments)
        self.reducer = reducer
        self._is_on_read = is_on_read
        self._is_equal = False  # On all replicas.
        self._is_assigned_elsewhere = False  # By code that does not call `synchronize`.
        self.drifts = False
        own = {
            "initial_value": arguments["initial_value"],
            "trainable": False,
            "name": f"{self.name.partition(':')[0]}/replica",
            "dtype": self.dtype,
        }
        others = [ResourceVariable(**own) for _ in range(num_replicas - 1)]
        self._others = others
        self._all_handles = (self._first_handle, *(other.handle for other in others))
        _variables[id(self)] = self

    @property
    def handle(self) -> tf.Tensor:
        return self._all_handles[replica_in_worker()] if self._is_made() else self._first_handle

    @property
    def _handle(self) -> Any:
        """The handle, for ops that TensorFlow executes at once.

        Such an op reads a variable's handle without a call of `value` if it is a plain tensor.
        """
        return self.handle if self._is_read_as_it_is() else HiddenHandle(self.handle)

    @_handle.setter
    def _handle(self, handle: tf.Tensor) -> None:
        self._first_handle = handle

    @property
    def of_each_replica(self) -> tuple[tf.Variable, ...]:
        """A variable of each replica's own values, in any context."""
        return (variable_of_handle(self._first_handle, self), *self._others)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        own = self.read_each()
        arguments = {**arguments_of_copy(self), "initial_value": own[0]}
        with tf.device(self.device):
            copied = type(self)(self.reducer, len(own), self._is_on_read, arguments)
        for variable, value in zip(copied.of_each_replica, own, strict=True):
            variable.assign(value)
        for name in ("drifts", "_is_assigned_elsewhere"):
            setattr(copied, name, getattr(self, name))
        return copied

    def _is_made(self) -> bool:
        """Returns whether the constructor has run; TensorFlow's base class calls methods in it."""
        return "_all_handles" in self.__dict__

    def _is_read_as_it_is(self) -> bool:
        """Returns whether `value` gives what is stored under the handle."""
        return self._reads_own()

    # Reads.

    def sparse_read(self, indices: Any, name: str | None = None) -> tf.Tensor:
        if self._is_read_as_it_is():
            return super().sparse_read(indices, name)
        return tf.gather(self.value(), indices, name=name)

    def gather_nd(self, indices: Any, name: str | None = None) -> tf.Tensor:
        if self._is_read_as_it_is():
            return super().gather_nd(indices, name)
        return tf.gather_nd(self.value(), indices, name=name)

    def read_value(self) -> tf.Tensor:
        return super().read_value() if self._reads_own() else combine([self])[0]

    def value(self, *args: Any, **kwargs: Any) -> tf.Tensor:
        return super().value(*args, **kwargs) if self._reads_own() else combine([self])[0]

    @property
    def handles(self) -> Sequence[tf.Tensor]:
        """The handle of each replica's variable."""
        return self._all_handles

    def numpy(self) -> Any:
        return self.read_value().numpy()

    def read_each(self) -> list[tf.Tensor]:
        """Returns the value of each replica of this worker, in any context."""
        read = tf.raw_ops.ReadVariableOp
        return [read(resource=handle, dtype=self.dtype) for handle in self._all_handles]

    def _reads_own(self) -> bool:
        if not self._is_made() or not self._is_on_read or is_in_replica() or NOW.reads.are_own:
            return True
        if is_written_as_saved_model():  # It holds the combined value, as a single one.
            return True
        if NOW.reads.combined is not None and id(self) in NOW.reads.combined:
            return False
        return NOW.step is not None or (self._is_equal and not self._is_assigned_elsewhere)

    # Assignments.

    def assign(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        if self._is_for_one(value, is_added=False):
            return super().assign(self._unless_empty(value, super().value), *args, **kwargs)
        return self._assign_each(self._shares(tf.cast(value, self.dtype)))

    def assign_add(self, delta: Any, *args: Any, **kwargs: Any) -> Any:
        if self._is_for_one(delta, is_added=True):
            return super().assign_add(delta, *args, **kwargs)
        shares = self._shares(tf.cast(delta, self.dtype))
        own = zip(self.read_each(), shares, strict=True)
        return self._assign_each([value + share for value, share in own])

    def assign_sub(self, delta: Any, *args: Any, **kwargs: Any) -> Any:
        if self._is_for_one(delta, is_added=True):
            delta = self._unless_empty(delta, lambda: tf.zeros_like(delta, self.dtype))
            return super().assign_sub(delta, *args, **kwargs)
        return self.assign_add(-tf.cast(delta, self.dtype))

    def scatter(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """Calls a method of TensorFlow's variable that updates some rows."""
        method = getattr(ResourceVariable, name)
        if not self._is_for_one(None, is_added=True):
            if self._is_on_read:
                raise AggregationError(
                    f"{self.name}.{name} outside strategy.run would change the first replica's "
                    f"share of the value alone. Call assign there, or call {name} in strategy.run."
                )
            for other in self._others:
                method(other, *args, **kwargs)
        return method(self, *args, **kwargs)

    def _is_for_one(self, value: Any, *, is_added: bool) -> bool:
        """Returns whether an assignment is for the running replica."""
        if not self._is_made():
            return True
        if not is_in_replica() or are_updates_equal():
            return False
        if not self._is_on_read and not self.drifts:
            self.drifts = depends_on_replica(value, has_own_values) is not False
        self._is_assigned_elsewhere |= NOW.step is None
        if NOW.step is not None and self.aggregation == _Aggregation.SUM:
            NOW.step.assignments.append(Assignment(self, value, is_added))
        return True

    def _unless_empty(self, value: Any, otherwise: Callable[[], tf.Tensor]) -> Any:
        """Returns a value, or the other one where a batch without rows has made it NaN.

        The mean of no row is NaN. What does not depend on the replica's rows, such as the mean over
        those of all replicas, or a count of steps, stays.
        """
        rows = own_rows()
        if rows is None or not self.dtype.is_floating or not self._is_made():
            return value
        value = tf.cast(value, self.dtype)
        return tf.where((rows > 0) | ~tf.math.is_nan(value), value, otherwise())

    def _assign_each(self, values: Sequence[tf.Tensor]) -> Any:
        for handle, value in zip(self._all_handles[1:], values[1:], strict=True):
            tf.raw_ops.AssignVariableOp(resource=handle, value=value)
        return super().assign(values[0])  # The first replica's, outside a replica's code.

    def _shares(self, combined: tf.Tensor) -> list[tf.Tensor]:
        """Returns one value per replica of this worker; `combined` is what a read then gives.

        Of a sum, the first replica of worker 0 gets it and all others get zeros.
        """
        if not (self._is_on_read and self.aggregation == _Aggregation.SUM):
            return [combined for _ in self._all_handles]
        zeros = tf.zeros_like(combined)
        first = combined if self.reducer.collectives.worker_index == 0 else zeros
        return [first, *(zeros for _ in self._all_handles[1:])]

    def _serialize_to_tensors(self) -> Any:
        """Returns what a checkpoint stores.

        After a program's own loop that is the combined value, so every worker saves. After `fit`,
        statistics are equal, and of a metric this worker's share is stored.
        """
        own = super()._serialize_to_tensors()
        if not (self._is_on_read and self._is_assigned_elsewhere):
            return own
        return {
            key: type(read)(self.read_value, self.dtype, self.device) for key, read in own.items()
        }

    def _export_to_saved_model_graph(
        self, object_map: Any = None, tensor_map: Any = None, options: Any = None, **kwargs: Any
    ) -> Any:
        """Exports one variable; functions that use those of the other replicas use it as well."""
        resources = super()._export_to_saved_model_graph(
            object_map=object_map, tensor_map=tensor_map, options=options, **kwargs
        )
        for other in self._others:
            object_map[other] = object_map[self]
            tensor_map[other.handle] = tensor_map[self._first_handle]
        return [*resources, *(other.handle for other in self._others)]

    def _restore_from_tensors(self, restored_tensors: dict[str, tf.Tensor]) -> Any:
        (value,) = restored_tensors.values()
        return self.assign(value)

    @property
    def is_statistic(self) -> bool:
        """True for averages, of which the mean over the replicas is as good."""
        if self._is_on_read:
            return bool(self.aggregation == _Aggregation.MEAN)
        return self.drifts and bool(self.dtype.is_floating)

    def become_equal(self, value: tf.Tensor) -> None:
        """Assigns a value to all replicas of this worker, which other workers do as well."""
        self._assign_each([value for _ in self._all_handles])
        self._is_equal = True

    def note_update(self) -> None:
        """Notes that a replica's code may have changed its own values."""
        self._is_equal = False


for _name in SCATTERS:
    setattr(ReplicaVariable, _name, functools.partialmethod(ReplicaVariable.scatter, _name))


class SeedVariable(ReplicaVariable):
    """The state of a Keras 3 SeedGenerator: [seed, count], int64.

    Each replica reads another seed: the stored one plus its number over all workers times a large
    number. So the first replica draws what a single process does, a checkpoint has one state, and a
    restored state gives every replica its own numbers again.
    """

    def value(self, *args: Any, **kwargs: Any) -> tf.Tensor:
        return super().value(*args, **kwargs) + self._own_offset()

    def read_value(self) -> tf.Tensor:
        return super().read_value() + self._own_offset()

    def assign(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        return super().assign(tf.cast(value, self.dtype) - self._own_offset(), *args, **kwargs)

    def _is_read_as_it_is(self) -> bool:
        return False

    def _own_offset(self) -> tf.Tensor:
        return tf.constant([SEED_STEP * replica_in_sync(), 0], self.dtype)


@contextmanager
def reads_own() -> Iterator[None]:
    """Makes reads in the `with` block give this worker's own values: no collectives."""
    with NOW.having(reads=Reads(are_own=True)):
        yield


def has_own_values(handle: tf.Tensor) -> bool:
    """Returns whether a handle belongs to a variable with other values on other replicas."""
    return any(
        handle is part
        for variable in _variables.values()
        if variable.drifts or isinstance(variable, SeedVariable)
        for part in variable.handles
    )


def combine(variables: Sequence[ReplicaVariable]) -> list[tf.Tensor]:
    """Returns each variable's combination over all replicas, on the host; a collective."""
    made = NOW.reads.combined
    if made is not None and all(id(v) in made for v in variables):
        NOW.reads.used.update(map(id, variables))
        return [made[id(v)] for v in variables]
    if not tf.executing_eagerly():
        return _combine(variables, [], variables[0].reducer)[0]
    with needs_all_workers("a value of all replicas", lambda: f"a read of {variables[0].name}"):
        return _combine(variables, [], variables[0].reducer)[0]


def _combine(
    variables: Sequence[ReplicaVariable], more: Sequence[tf.Tensor], reducer: Reducer
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Returns the combinations of variables, and the sums of more tensors over the workers.

    All sums share their messages, and so do the means.
    """
    sums = [v for v in variables if v.aggregation == _Aggregation.SUM]
    means = [v for v in variables if v.aggregation == _Aggregation.MEAN or v.is_statistic]
    combined: dict[int, tf.Tensor] = {}
    added: list[tf.Tensor] = []
    if sums or more:
        parts = [*(v.read_each() for v in sums), *([tensor] for tensor in more)]
        reduced = reducer.reduce(parts, mean=False, name="read_sums")
        combined.update((id(v), value) for v, value in zip(sums, reduced, strict=False))
        added = reduced[len(sums) :]
    if means:
        parts = [v.read_each() for v in means]
        reduced = reducer.reduce(parts, mean=True, name="read_means")
        combined.update((id(v), value) for v, value in zip(means, reduced, strict=True))
    for v in variables:
        if id(v) not in combined:  # ONLY_FIRST_REPLICA, or NONE, which has nothing better.
            combined[id(v)] = reducer.broadcast(v.read_each()[0], f"{v.name}/read")
    return [combined[id(v)] for v in variables], added


@contextmanager
def reads_combined(
    variables: Sequence[Any], requests: tf.Tensor, reducer: Reducer
) -> Iterator[tf.Tensor]:
    """Makes reads in the `with` block use combinations that are made at once, in few messages.

    A collective. Variables of other kinds are read as usual. Yields the sum over the workers of
    `requests`, which shares the message.
    """
    own = [v for v in variables if isinstance(v, ReplicaVariable)]
    values, (sums,) = _combine(own, [requests], reducer)
    combined = {id(v): value for v, value in zip(own, values, strict=True)}
    with NOW.having(reads=Reads(combined=combined)):
        yield sums


def synchronize() -> None:
    """Gives all replicas the mean of each statistic; a collective."""
    variables = [v for v in list(_variables.values()) if v.is_statistic]
    if variables:
        for variable, value in zip(variables, combine(variables), strict=True):
            variable.become_equal(value)


def note_updates() -> None:
    """Notes that a replica's code has run: statistics are no longer equal."""
    for variable in list(_variables.values()):
        variable.note_update()


def tf_variable(variable: Any) -> tf.Variable:
    """Returns the TensorFlow variable of a Keras variable."""
    return variable if isinstance(variable, tf.Variable) else variable.value
