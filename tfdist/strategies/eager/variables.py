"""EagerVariables: variables of TensorFlow 2, which can be read at once.

Variables of all workers start with worker 0's value. How an update in a replica's code reaches the
others depends on the variable, as in `tf.distribute`:

    an optimizer's update            equal on every worker, since the gradients are reduced
    ON_READ (metrics, statistics)    each replica has its own values; a read combines them
    any other with an aggregation    the replicas' values are combined, then assigned
    not trainable, no aggregation    each replica has its own values (moving averages, seeds)
    trainable, no aggregation        refused: the replicas would have other weights
"""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from tfdist.process.endings import OneLineError
from tfdist.strategies.divided.tables import Tables
from tfdist.strategies.eager.replica_data import depends_on_replica
from tfdist.strategies.eager.replica_variable import (
    SCATTERS,
    ReplicaVariable,
    SeedVariable,
    has_own_values,
)
from tfdist.strategies.eager.run import needs_all_workers
from tfdist.strategies.eager.table_checkpoints import adapt_checkpoints
from tfdist.strategies.eager.table_exports import adapt_exports
from tfdist.strategies.placement import HOST, Placement
from tfdist.strategies.private_tensorflow import (
    ResourceVariable,
    arguments_of_copy,
    constructor_arguments,
)
from tfdist.strategies.reductions.reducer import Reducer
from tfdist.strategies.reductions.slices import add_equal_rows
from tfdist.strategies.values.aggregated import AggregationError, refuse_mean_of_integers
from tfdist.strategies.values.replica_context import (
    are_updates_equal,
    is_in_replica,
    replica_in_worker,
)

_Aggregation = tf.VariableAggregation
# The name that Keras 3 gives the state of a SeedGenerator.
_SEED_NAME = "seed_generator_state"
# A tf.train.Checkpoint makes it when it saves or restores, which worker 0 may do alone.
_OF_ONE_WORKER = ("save_counter",)
_NO_NUMBERS = (tf.string, tf.resource, tf.variant)
# The updates of a variable that a replica's code may call.
_COMBINED = ("assign", "assign_add", "assign_sub", "scatter_add", "scatter_sub")
# Of a variable's name, dtype and shape, and of a value that their message has room for.
_DESCRIPTION_BYTES, _SMALL_BYTES = 160, 832
_CONTENT_START = _DESCRIPTION_BYTES + hashlib.sha256().digest_size
_NOTHING = np.zeros([0], np.uint8)


class ModelsDifferError(OneLineError, ValueError):
    """The workers make different variables."""

    exit_code: ClassVar[int] = 1


class EagerVariables:
    """Makes and reads variables outside of v1 graphs."""

    def __init__(self, placement: Placement, reducer: Reducer, tables: Tables) -> None:
        self._placement = placement
        self._reducer = reducer
        self._tables = tables

    def create(self, next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        """Makes a variable with worker 0's initial value.

        A collective where there are several workers: every worker makes the same variables, in the
        same order.
        """
        device = self._placement.eager_variable_device
        division = self._tables.plan(kwargs)
        if division is not None:
            with tf.init_scope(), tf.device(device):
                with needs_all_workers(
                    "making a variable", lambda: f"making the variable {division.name}"
                ):
                    self._compare(f"{division.name}, {division.describe()}")
                adapt_checkpoints()
                adapt_exports()
                return self._tables.create(division, kwargs)
        colocate_with = kwargs.pop("colocate_with", None)
        if self._reducer.num_replicas == 1 or kwargs.get("name") in _OF_ONE_WORKER:
            with tf.device(device):
                return next_creator(**kwargs)
        is_on_read = kwargs.get("synchronization") == tf.VariableSynchronization.ON_READ
        has_own_values = is_on_read or (
            kwargs.get("aggregation") in (None, _Aggregation.NONE)
            and kwargs.get("trainable") is False
            and colocate_with is None  # A slot, which only optimizers update.
        )
        with tf.init_scope(), tf.device(HOST):
            arguments = constructor_arguments(kwargs)
            arguments["initial_value"] = self._from_worker_0(kwargs)
        with tf.init_scope(), tf.device(device):
            if has_own_values:
                is_seed = kwargs.get("name") == _SEED_NAME
                kind = SeedVariable if is_seed else ReplicaVariable
                variable = kind(self._reducer, self._placement.num_replicas, is_on_read, arguments)
            else:
                variable = SharedVariable(**arguments)
                variable.reducer = self._reducer
        refuse_mean_of_integers(variable)
        return variable

    def _from_worker_0(self, kwargs: dict[str, Any]) -> tf.Tensor:
        """Returns worker 0's initial value, after a check that all workers make the same variable.

        A value that all workers have, as zeros or with a seed, is not sent.

        Raises:
          ModelsDifferError: On every worker, if they make different variables.
        """
        value = kwargs.get("initial_value")
        value = tf.convert_to_tensor(value() if callable(value) else value, kwargs.get("dtype"))
        # Engines send only numbers. TensorFlow refuses a tensor of a function.
        has_no_message = value.dtype in _NO_NUMBERS or tf.is_symbolic_tensor(value)
        if self._reducer.collectives.num_workers == 1 or has_no_message:
            return value
        name, content = kwargs.get("name") or "Variable", value.numpy().reshape(-1).view(np.uint8)
        what = f"{value.dtype.name} {value.shape.as_list()}"
        with needs_all_workers("making a variable", lambda: f"making the variable {name}"):
            are_equal, found = self._compare(f"{name}, {what}", content)
            if are_equal:
                return value
            if content.size > _SMALL_BYTES:
                return self._reducer.broadcast(value, name)
        numbers = np.frombuffer(found[: content.size], value.dtype.as_numpy_dtype)
        return tf.constant(numbers.reshape(value.shape))

    def _compare(
        self, described: str, content: np.ndarray[Any, Any] = _NOTHING
    ) -> tuple[bool, bytes]:
        """Checks that all workers make this variable next. A collective.

        Each worker gets one message of fixed size from all:

            name, dtype and shape    SHA-256 of the content    the content, if it is small    zeros
            160 bytes                32 bytes                  832 bytes

        Returns:
          Whether all workers have the same content, and worker 0's with zeros behind it.

        Raises:
          ModelsDifferError: On every worker, if they make different variables.
        """
        is_small = content.size <= _SMALL_BYTES
        parts = (
            described.encode()[:_DESCRIPTION_BYTES].ljust(_DESCRIPTION_BYTES, b"\0"),
            hashlib.sha256(content.data).digest(),
            (content.tobytes() if is_small else b"").ljust(_SMALL_BYTES, b"\0"),
        )
        own = tf.constant(np.frombuffer(b"".join(parts), np.int32)[None])  # [1, 256]
        collectives = self._reducer.collectives
        rows = collectives.gather(own, "variables", same_rows=True).numpy()  # [workers, 256]
        messages = [row.tobytes() for row in rows]
        descriptions = [message[:_DESCRIPTION_BYTES] for message in messages]
        for worker, theirs in enumerate(descriptions):
            if theirs != descriptions[0]:
                first, other = (
                    text.rstrip(b"\0").decode(errors="replace")
                    for text in (descriptions[0], theirs)
                )
                raise ModelsDifferError(
                    f"worker {worker} makes the variable {other}, and worker 0 makes {first}. All "
                    "workers must make the same variables, in the same order."
                )
        are_equal = len({message[:_CONTENT_START] for message in messages}) == 1
        return are_equal, messages[0][_CONTENT_START:]


class SharedVariable(ResourceVariable):  # type: ignore[misc]
    """A variable that all replicas of a worker share, and that is equal on all workers.

    Assigned in a replica's code, the values of all replicas are combined first, as the variable's
    `aggregation` says. Without an aggregation this is refused.

    Attributes:
      reducer: Combines values over all replicas.
    """

    reducer: Reducer

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        arguments = arguments_of_copy(self)
        with tf.device(self.device):
            copied = SharedVariable(initial_value=self.read_value(), **arguments)
        copied.reducer = self.reducer
        return copied

    def update_by(self, name: str, value: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Calls a method of TensorFlow's variable with the values of all replicas combined."""
        method = functools.partial(getattr(ResourceVariable, name), self)
        if not is_in_replica() or are_updates_equal():
            if replica_in_worker() != 0:
                return self
            if isinstance(value, tf.IndexedSlices) and name in _COMBINED:
                value = add_equal_rows(value)  # In an order that is equal on all workers.
            return method(value, *args, **kwargs)
        if name not in _COMBINED:
            raise AggregationError(
                f"{self.name}.{name} in a replica's code would give replicas different values. "
                f"Call {', '.join(_COMBINED[:-1])} or {_COMBINED[-1]} there, which combine them, "
                f"or call {name} outside strategy.run."
            )
        if self.aggregation == _Aggregation.NONE:
            if depends_on_replica(value, has_own_values) is False:  # Equal on all replicas.
                return method(value, *args, **kwargs) if replica_in_worker() == 0 else self
            raise AggregationError(
                f"{self.name} is assigned in a replica's code and has no aggregation, so replicas "
                "would have different values. Make it with aggregation="
                "tf.VariableAggregation.MEAN (or SUM, ONLY_FIRST_REPLICA), or assign it outside "
                "strategy.run."
            )

        def merge(strategy: Any, value: Any) -> Any:
            parts = strategy.experimental_local_results(value)
            return method(self._combined(parts), *args, **kwargs)

        return tf.distribute.get_replica_context().merge_call(merge, args=(value,))

    def _combined(self, parts: tuple[Any, ...]) -> Any:
        """Combines the values that the replicas of this worker assign."""
        if self.aggregation == _Aggregation.ONLY_FIRST_REPLICA:
            return self._from_first(parts[0])
        parts = tuple(
            part
            if isinstance(part, tf.IndexedSlices)
            else tf.convert_to_tensor(part, dtype=self.dtype)
            for part in parts
        )
        if len(parts) == 1:  # A constant, or a value that all replicas of the worker share.
            parts *= self.reducer.num_replicas // self.reducer.collectives.num_workers
        is_mean = self.aggregation == _Aggregation.MEAN
        return self.reducer.reduce([parts], mean=is_mean, name="aggregated")[0]

    def _from_first(self, value: Any) -> Any:
        """Returns worker 0's value; no message for a constant, as counters add."""
        if isinstance(value, tf.IndexedSlices):  # All other replicas give no rows.
            none = tf.IndexedSlices(value.values[:0], value.indices[:0], value.dense_shape)
            collectives = self.reducer.collectives
            num_others = self.reducer.num_replicas // collectives.num_workers - 1
            own = value if collectives.worker_index == 0 else none
            parts = (own, *(none for _ in range(num_others)))
            return self.reducer.reduce([parts], mean=False, name="from_first_replica")[0]
        if _is_constant(value) or self.dtype == tf.string:
            return value
        value = tf.cast(value, self.dtype)
        if not value.shape.is_fully_defined():
            value = tf.ensure_shape(value, self.shape)
        return self.reducer.broadcast(value, "from_first_replica")


def _updating(name: str) -> Callable[..., Any]:
    original = getattr(ResourceVariable, name)
    _, first, *_ = inspect.signature(original).parameters

    @functools.wraps(original)
    def update(self: SharedVariable, *args: Any, **kwargs: Any) -> Any:
        value, *others = args or (kwargs.pop(first),)
        return self.update_by(name, value, others, kwargs)

    return update


for _name in {*_COMBINED, *SCATTERS}:
    setattr(SharedVariable, _name, _updating(_name))


def _is_constant(value: Any) -> bool:
    """Returns whether the program's text gives a value, which is equal on all workers."""
    if not tf.is_tensor(value):
        return True
    return tf.is_symbolic_tensor(value) and tf.get_static_value(value) is not None
