"""DividedVariable: this worker's rows of a table that is divided between the workers."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from tfdist.process.endings import OneLineError
from tfdist.strategies.placement import HOST
from tfdist.strategies.private_tensorflow import (
    HiddenHandle,
    ResourceVariable,
    is_written_as_saved_model,
    mark_as_read,
)
from tfdist.strategies.reductions.division import Division, division_of
from tfdist.strategies.reductions.reducer import Reducer
from tfdist.strategies.reductions.row_exchange import is_of_own_rows, look_up
from tfdist.strategies.reductions.slices import add_equal_rows
from tfdist.strategies.values.replica_context import replica_in_worker

_ASSIGNMENTS = ("assign", "assign_add", "assign_sub")
_SCATTERS = (
    *("scatter_add", "scatter_sub", "scatter_update", "scatter_max", "scatter_min", "scatter_mul"),
    *("scatter_div", "batch_scatter_update"),
)
_of_thread = threading.local()


# The shapes of the tables that this process has made.
_shapes: set[tuple[int, ...]] = set()


def shapes_of_tables() -> set[tuple[int, ...]]:
    """Returns the shapes of the divided tables that this process has made."""
    return _shapes


class DividedTableError(OneLineError, ValueError):
    """A divided table is used in a way that would need all of it on each worker."""


def refuse_divided(optimizer: str, variables: Iterable[Any]) -> None:
    """Raises an error if an optimizer that needs all of a variable is to update a divided one.

    Such are those with norms of weights or gradients, or that look whether all is finite.
    """
    for division in filter(None, map(division_of, variables)):
        raise DividedTableError(
            f"{optimizer} cannot update {division.name}, which is divided between "
            f"{division.num_workers} workers: it may need numbers of all rows. Use an optimizer of "
            "tf.compat.v1.train or of Keras by itself, or let variable_partitioner leave it whole."
        )


@contextmanager
def own_rows() -> Iterator[None]:
    """Makes divided variables be this worker's rows in the `with` block, as an update needs them.

    In this thread.
    """
    before = is_of_own()
    _of_thread.is_of_own = True
    try:
        yield
    finally:
        _of_thread.is_of_own = before


def is_of_own() -> bool:
    """Returns whether this is code in `own_rows`."""
    return bool(getattr(_of_thread, "is_of_own", False))


class DividedVariable(ResourceVariable):  # type: ignore[misc]
    """This worker's rows of a table, or of a table's slot.

    Looking up takes ids of the whole table, and is a collective. In
    `own_rows` all of it is like a variable of these rows, whose indices begin at 0. The private
    members `_handle`, `_as_graph_element` and `_save_slice_info` are those of the base class.

    Args:
      reducer: Sends values between the workers.
      division: The division of the table.
      arguments: The arguments of a resource variable; the initial value has this worker's rows.
    """

    def __init__(self, reducer: Reducer, division: Division, arguments: dict[str, Any]) -> None:
        super().__init__(**arguments)
        self.reducer = reducer
        self.division = division
        _shapes.add(division.shape)
        name = self.name.partition(":")[0]
        self._set_save_slice_info(division.slice_info(name))
        if not tf.executing_eagerly():
            with tf.device(self.device), tf.control_dependencies(None):
                self._refusing = self._make_refusing()

    @property
    def handle(self) -> tf.Tensor:
        return self._own_handle

    @property
    def _handle(self) -> Any:
        """The handle, for ops that TensorFlow executes at once.

        Such an op reads a variable's handle without a call of `value` if it is a plain tensor.
        """
        return self._own_handle if self._is_readable() else HiddenHandle(self._own_handle)

    @_handle.setter
    def _handle(self, handle: tf.Tensor) -> None:
        self._own_handle = handle

    @property
    def shape(self) -> tf.TensorShape:
        """The shape of the whole table; in an update, of this worker's rows."""
        own: tf.TensorShape = super().shape
        return own if self._is_readable() else tf.TensorShape(self.division.shape)

    def _is_readable(self) -> bool:
        return is_of_own() or "division" not in self.__dict__  # The constructor reads it.

    @property
    def name_in_checkpoint(self) -> str:
        return str(self._save_slice_info.full_name)

    def gather_own(self, rows: tf.Tensor) -> tf.Tensor:
        """Returns some of this worker's rows, by their numbers among these, in any context."""
        with tf.device(self.device):
            return tf.raw_ops.ResourceGather(
                resource=self._own_handle, indices=rows, dtype=self.dtype
            )

    def assign_own(self, start: int, rows: Any) -> None:
        """Assigns some of this worker's rows, by their numbers among these, in any context."""
        rows = tf.convert_to_tensor(rows, self.dtype)
        with tf.device(self.device):
            tf.raw_ops.ResourceScatterUpdate(
                resource=self._own_handle,
                indices=start + tf.range(tf.shape(rows)[0]),
                updates=rows,
            )

    # Look-ups.

    def sparse_read(self, indices: Any, name: str | None = None) -> tf.Tensor:
        if self._is_readable():
            return super().sparse_read(indices, name)
        if is_written_as_saved_model():  # It holds the whole table.
            with own_rows():
                return super().sparse_read(indices, name)
        ids = tf.convert_to_tensor(indices)
        division, replica = self.division, replica_in_worker()
        message = f"{division.name}/look_up" + (f"_{replica}" if replica else "")
        rows = look_up(self.reducer.collectives, division, ids, self.gather_own, message)
        if not self.dtype.is_floating:
            return rows
        if self.trainable:
            mark_as_read(self)
        whole = tf.constant(division.shape, tf.int64)

        @tf.custom_gradient  # type: ignore[untyped-decorator]
        def recorded(rows: tf.Tensor, handle: tf.Tensor) -> Any:
            def gradient(upstream: tf.Tensor) -> tuple[None, tf.IndexedSlices]:
                values = tf.reshape(upstream, [-1, *division.shape[1:]])
                return None, tf.IndexedSlices(values, tf.reshape(ids, [-1]), whole)

            del handle
            return tf.identity(rows), gradient

        return recorded(tf.stop_gradient(rows), self._own_handle)

    def gather_nd(self, indices: Any, name: str | None = None) -> tf.Tensor:
        if self._is_readable():
            return super().gather_nd(indices, name)
        raise self._refused("tf.gather_nd of it", "Look rows up by tf.gather(table, ids)")

    # Reads.

    def value(self, *args: Any, **kwargs: Any) -> tf.Tensor:
        self._check_read()
        return super().value(*args, **kwargs)

    def read_value(self) -> tf.Tensor:
        self._check_read()
        return super().read_value()

    def numpy(self) -> Any:
        self._check_read()
        return super().numpy()

    def _check_read(self) -> None:
        if not self._is_readable():
            raise self._refusal_of_read()

    def _refusal_of_read(self) -> DividedTableError:
        return self._refused(
            "reading all of it",
            "Look rows up by tf.nn.embedding_lookup or tf.gather, or inspect some by "
            "strategy.read_rows(table, ids)",
        )

    def _refused(self, what: str, fix: str) -> DividedTableError:
        division = self.division
        return DividedTableError(
            f"{division.name} is divided between {division.num_workers} workers, and {what} would "
            f"need its {division.num_bytes:,} bytes on each. {fix}; or let variable_partitioner "
            "leave it whole."
        )

    def _as_graph_element(self) -> tf.Tensor:
        """Returns the tensor that `session.run` fetches for this variable: one that fails.

        Ops that are made beside the variable have this tensor's device.
        """
        return self._refusing

    def _make_refusing(self) -> tf.Tensor:
        refused = tf.debugging.Assert(False, [str(self._refusal_of_read())])
        with tf.control_dependencies([refused]):
            return tf.constant(0)

    # Assignments.

    def update_by(self, name: str, value: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Calls a method of TensorFlow's variable with a value for this worker's rows."""
        method = functools.partial(getattr(ResourceVariable, name), self)
        if not self._is_readable():
            shape = getattr(value, "shape", None)
            if name != "assign" or shape is None or tuple(shape) != self.division.shape:
                raise self._refused(f"{name} outside of an optimizer", "Let an optimizer update it")
            own = value[self.division.own_start : self.division.own_stop]
            return method(own, *args, **kwargs)
        if replica_in_worker() != 0:
            return self
        if isinstance(value, tf.IndexedSlices) and name in ("scatter_add", "scatter_sub"):
            value = add_equal_rows(value)  # In an order that is equal from run to run.
        return method(value, *args, **kwargs)

    def check_slices(self, slices: tf.IndexedSlices) -> None:
        """Raises an error if slices have not been sent to the owners of their rows.

        To be called with what an update gets; later its functions may hide the shape.
        """
        if not is_of_own_rows(slices, self.division):
            raise DividedTableError(
                f"{self.division.name} is divided between {self.division.num_workers} workers, and "
                "this update has rows that were not sent to their owners. Give the gradients to "
                "apply_gradients of an optimizer of Keras or of tf.compat.v1.train in "
                "strategy.run, which sends them."
            )

    # Checkpoints of TensorFlow 2.

    def _serialize_to_tensors(self) -> Any:
        """Returns what a `tf.train.Checkpoint` of this worker stores: a slice of its rows.

        `eager.table_checkpoints` adds those of the others.
        """
        if not tf.compat.v1.executing_eagerly_outside_functions():
            self._refuse_checkpoint()
        own = super()._serialize_to_tensors()
        spec = self.division.slice_info(self.division.name).spec

        return {
            key: {spec: type(read)(self._own_for_checkpoint, self.dtype, self.device)}
            for key, read in own.items()
        }

    def _own_for_checkpoint(self) -> tf.Tensor:
        """Returns this worker's rows, on the host, without a copy if they are there."""
        with tf.device(self.device), own_rows():
            rows = self.read_value_no_copy()
        with tf.device(HOST):
            return tf.identity(rows)

    def _restore_from_tensors(self, restored_tensors: dict[str, Any]) -> Any:
        rows = {key: tf.nest.flatten(read)[0] for key, read in restored_tensors.items()}
        with own_rows():
            return super()._restore_from_tensors(rows)

    def _refuse_checkpoint(self, *args: Any, **kwargs: Any) -> Any:
        raise self._refused(
            "a tf.train.Checkpoint of a graph or in the background",
            "Save a tf.train.Checkpoint of TensorFlow 2 in the foreground, or train an Estimator",
        )

    _gather_saveables_for_checkpoint = _refuse_checkpoint
    _copy_trackable_to_cpu = _refuse_checkpoint

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        raise self._refused("a copy of it", "Make another table")


def _updating(name: str) -> Callable[..., Any]:
    original = getattr(ResourceVariable, name)
    _, first, *_ = inspect.signature(original).parameters

    @functools.wraps(original)
    def update(self: DividedVariable, *args: Any, **kwargs: Any) -> Any:
        value, *others = args or (kwargs.pop(first),)
        return self.update_by(name, value, others, kwargs)

    return update


for _name in (*_ASSIGNMENTS, *_SCATTERS):
    setattr(DividedVariable, _name, _updating(_name))
