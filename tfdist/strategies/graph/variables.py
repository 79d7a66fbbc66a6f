"""GraphVariables: variables of a graph, their initial values, and the copies that a session reads.

Every worker has its own graph with the same variables, which start with worker 0's values. A
sync-on-read variable, of which each replica updates its own, is combined where it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.strategies.divided.tables import Tables
from tfdist.strategies.placement import HOST, Placement, lift_initial_value
from tfdist.strategies.private_tensorflow import constructor_arguments
from tfdist.strategies.reductions.division import division_of
from tfdist.strategies.reductions.reducer import Reducer
from tfdist.strategies.values import sync_on_read
from tfdist.strategies.values.aggregated import aggregate_assignments, refuse_mean_of_integers
from tfdist.strategies.values.sync_on_read import Aggregation, SyncOnReadVariable


class GraphVariables:
    """Makes and combines the variables of the current graph."""

    def __init__(self, placement: Placement, reducer: Reducer, tables: Tables) -> None:
        self._placement = placement
        self._reducer = reducer
        self._tables = tables
        self._is_inside_loop = False
        self._sends_each_initial_value = True

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

        For a session that runs `broadcast` after the initializers. Otherwise the initial
        value of each variable is sent by itself.
        """
        self._sends_each_initial_value = False
        try:
            yield
        finally:
            self._sends_each_initial_value = True

    def create(self, next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        """Makes a variable that starts with worker 0's value."""
        kwargs = lift_initial_value(kwargs)
        division = self._tables.plan(kwargs)
        if division is not None:
            with (
                tf.init_scope(),
                v1.get_default_graph().colocate_with(None, ignore_existing=True),
                tf.device(self._placement.variable_device),
            ):
                return self._tables.create(division, kwargs)
        # The global step starts at 0 on every worker, and worker 0's hooks read its initial value
        # in a session call that the other workers do not make.
        is_sent_later = not self._sends_each_initial_value and _is_global(kwargs)
        is_counter = kwargs.get("name") == "global_step"
        if self._reducer.collectives.num_workers == 1 or is_counter or is_sent_later:
            return self._create_own_variable(next_creator, **kwargs)
        own, shared = self._from_worker_0(
            kwargs.get("initial_value"), kwargs.get("dtype"), kwargs.get("name") or "Variable"
        )
        variable = self._create_own_variable(next_creator, **{**kwargs, "initial_value": shared})
        variable.own_initial_value = own
        return variable

    def _create_own_variable(self, next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        if kwargs.get("synchronization") == tf.VariableSynchronization.ON_READ:
            devices = self._placement.devices
            if kwargs.get("aggregation") == Aggregation.SUM and len(devices) > 1:
                devices = (HOST,) * len(devices)  # Counts and sums of metrics.
            variable = sync_on_read.make_variable(devices, constructor_arguments(kwargs))
            if self._reducer.num_replicas > 1:
                refuse_mean_of_integers(variable)
                variable.read_over_all = lambda: self.read(variable)
            return variable
        is_shared = self._placement.num_replicas > 1
        if is_shared and kwargs.get("aggregation") not in (None, Aggregation.NONE):
            kwargs["use_resource"] = True  # Ops assign to variables of TensorFlow 1, not methods.
        variable = self._placement.create_variable(
            next_creator, inside_loop=self._is_inside_loop, **kwargs
        )
        if is_shared:
            aggregate_assignments(variable)
        if self._reducer.num_replicas > 1:
            refuse_mean_of_integers(variable)
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
            return value, self._reducer.broadcast(value, f"{name}/from_worker_0")

    def broadcast(self) -> tf.Operation:
        """Returns an op that sets every variable, in each replica, to worker 0's value.

        It runs after worker 0 has restored the variables. A collective: every worker must run it,
        with the same variables.
        """
        variables = [
            v for v in v1.global_variables() if v.dtype != tf.string and division_of(v) is None
        ]
        with tf.device(HOST), tf.name_scope("broadcast_variables"):
            assignments = []
            for variable in variables:
                is_own = isinstance(variable, SyncOnReadVariable)
                if not is_own and self._reducer.collectives.num_workers == 1:
                    continue
                local = variable.read_each()[0] if is_own else variable.read_value()
                value = self._reducer.broadcast(local, variable.op.name)
                if is_own:
                    op = variable.share_out(value, self._reducer.collectives.worker_index)
                else:
                    op = variable.assign(value, read_value=False)
                assignments.append(op)
            return tf.group(*assignments)

    def synchronize(self) -> tf.Operation | None:
        """Returns an op that combines the sync-on-read variables before worker 0 saves them.

        A read of such a variable gives the same value before and after. A collective: every worker
        must run it. None if the graph has no such variable.
        """
        variables = sync_on_read.variables_of(tf.compat.v1.get_default_graph())
        if not variables or self._reducer.num_replicas == 1:
            return None
        with tf.name_scope("synchronize_variables"):
            combined = [variable.value_over_all() for variable in variables]
            index = self._reducer.collectives.worker_index
            pairs = zip(variables, combined, strict=True)
            return tf.group(*(v.share_out(value, index) for v, value in pairs))

    def read(self, variable: Any) -> tf.Tensor:
        """Reads a variable. A sync-on-read variable is combined over all replicas: a collective."""
        if not isinstance(variable, SyncOnReadVariable):
            return tf.convert_to_tensor(variable)
        values = variable.read_each()
        if variable.aggregation == Aggregation.ONLY_FIRST_REPLICA:
            return self._reducer.broadcast(values[0], f"{variable.op.name}/read_on_worker_0")
        is_mean = variable.aggregation != Aggregation.SUM
        name = variable.op.name
        return self._reducer.reduce([values], mean=is_mean, name="read_combined", names=[name])[0]


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
