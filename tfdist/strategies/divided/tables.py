"""Tables: which variables are divided, as the program's `variable_partitioner` says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import tensorflow as tf

from tfdist.process.endings import print_to_stderr
from tfdist.strategies.divided.initial_rows import own_rows_of, traced_shape
from tfdist.strategies.divided.variable import DividedTableError, DividedVariable
from tfdist.strategies.private_tensorflow import (
    constructor_arguments,
    is_written_as_saved_model,
    make_partitioned_whole,
)
from tfdist.strategies.reductions.division import Division, division_of
from tfdist.strategies.reductions.reducer import Reducer

Partitioner = Callable[..., Sequence[int]]


def check_partitioner(partitioner: Any) -> Partitioner | None:
    """Returns a `variable_partitioner`.

    Raises:
      DividedTableError: If it is not a function.
    """
    if partitioner is not None and not callable(partitioner):
        raise DividedTableError(
            "variable_partitioner must be a function of a shape and a dtype, such as tf.distribute."
            f"experimental.partitioners.MinSizePartitioner(max_shards=2), got {partitioner!r}."
        )
    found: Partitioner | None = partitioner
    return found


def is_divided(partitioner: Partitioner, name: str, shape: tf.TensorShape, dtype: Any) -> bool:
    """Returns whether a partitioner divides a variable of a known shape.

    Raises:
      DividedTableError: If it divides another axis than the first.
    """
    shards = [int(number) for number in partitioner(shape=shape, dtype=dtype)]
    if len(shards) != shape.rank or any(number != 1 for number in shards[1:]):
        raise DividedTableError(
            f"variable_partitioner gives {shards} for {name} of shape {shape.as_list()}, and only "
            f"the first axis of a variable can be divided: [n{', 1' * (shape.rank - 1)}]. Give the "
            "partitioner axis=0."
        )
    return shards[0] > 1


# Variables of at least this size are divided where a program of TensorFlow 1 partitions them.
LEAST_PARTITIONED_BYTES = 16 << 20


@cache
def _intercept_partitioners() -> None:
    def is_whole(name: str, parts: Sequence[int], shape: tf.TensorShape) -> bool:
        tables = getattr(tf.distribute.get_strategy().extended, "tables", None)
        if not isinstance(tables, Tables) or not tables.divides_partitioned:
            return False
        tables.note_partitioned(name, parts, shape)
        return True  # As a strategy that divides nothing makes it.

    make_partitioned_whole(is_whole)


def _num_bytes(shape: tf.TensorShape) -> int:
    return int(shape.num_elements() or 0) * int(tf.float32.size)


class Tables:
    """Makes the variables that are divided.

    Args:
      partitioner: The program's `variable_partitioner`; None divides nothing.
      reducer: Sends values between the workers.

    Attributes:
      divides_partitioned: Whether partitioners of TensorFlow 1 count; see `divide_partitioned`.
    """

    def __init__(self, partitioner: Partitioner | None, reducer: Reducer) -> None:
        self._partitioner = partitioner
        self._reducer = reducer

        # Bytes, name, shape and dtype of the largest variable that the partitioner leaves whole.
        self._largest_whole: tuple[int, str, tf.TensorShape, Any] | None = None
        self._may_name_whole = partitioner is not None
        self.divides_partitioned = False
        self._partitioned: set[str] = set()  # Names of variables that are made next.
        if partitioner is not None:
            self.divide_partitioned()

    def divide_partitioned(self) -> None:
        """Divides what a program of TensorFlow 1 gives a partitioner, if it is large.

        Dense layers, whose variables are read whole, are partitioned in such programs as well, and
        are smaller.
        """
        self.divides_partitioned = True
        _intercept_partitioners()

    def note_partitioned(self, name: str, parts: Sequence[int], shape: tf.TensorShape) -> None:
        """Notes a partitioned variable that is made next: `plan` divides it if it is large."""
        is_by_rows = parts[0] > 1 and all(number == 1 for number in parts[1:])
        if is_by_rows and _num_bytes(shape) >= LEAST_PARTITIONED_BYTES:
            self._partitioned.add(name)

    def plan(self, kwargs: dict[str, Any]) -> Division | None:
        """Returns the division of a variable with these arguments of a creator; None without one.

        The slot of a divided table that has its shape, or that of own rows, is divided alike.
        """
        collectives = self._reducer.collectives
        if not self.divides_partitioned or collectives.num_workers == 1:
            return None
        if is_written_as_saved_model():  # The variables of its graph are whole.
            return None
        beside = division_of(kwargs.get("colocate_with"))
        is_of_replica = kwargs.get("synchronization") == tf.VariableSynchronization.ON_READ
        found = (
            None
            if is_of_replica
            else traced_shape(kwargs.get("initial_value"), kwargs.get("dtype"))
        )
        if found is None or not found[0].is_fully_defined() or not found[0].rank:
            return None
        shape, dtype = found
        if dtype.size not in (4, 8) or dtype.is_complex:
            return None
        name = kwargs.get("name") or "Variable"
        whole = tuple(shape)
        if beside is not None:
            if whole not in (beside.shape, beside.own_shape):
                return None
            whole = beside.shape
        elif shape[0] < collectives.num_workers or not (
            name in self._partitioned
            or (self._partitioner and is_divided(self._partitioner, name, shape, dtype))
        ):
            self._note_whole(_full_name(name), shape, dtype)
            return None
        self._may_name_whole = False
        self._partitioned.discard(name)
        return Division(
            name=_full_name(name),
            shape=whole,
            dtype=dtype,
            num_workers=collectives.num_workers,
            worker_index=collectives.worker_index,
        )

    def _note_whole(self, name: str, shape: tf.TensorShape, dtype: tf.DType) -> None:
        num_bytes = int(shape.num_elements() or 0) * int(dtype.size)
        if self._largest_whole is None or num_bytes > self._largest_whole[0]:
            self._largest_whole = num_bytes, name, shape, dtype

    def note_gradients(self) -> None:
        """Prints once, on worker 0, that the program's partitioner has divided no variable.

        To be called where gradients are reduced, when a model's variables have been made.
        """
        if not self._may_name_whole or self._partitioner is None or self._largest_whole is None:
            return
        self._may_name_whole = False
        if self._reducer.collectives.worker_index == 0:
            num_bytes, name, shape, dtype = self._largest_whole
            shards = [int(number) for number in self._partitioner(shape=shape, dtype=dtype)]
            print_to_stderr(
                f"variable_partitioner divides no variable: for the largest, {name} "
                f"{shape.as_list()} of {num_bytes:,} bytes, it gives {shards}. TensorFlow's "
                "partitioners have max_shards=1 by default: give max_shards=1 << 20, and bytes of "
                "a shard that are less than a table's."
            )

    def create(self, division: Division, kwargs: dict[str, Any]) -> DividedVariable:
        """Makes this worker's rows of a table, where a device is entered already."""
        arguments = constructor_arguments(kwargs)
        arguments["initial_value"] = own_rows_of(kwargs.get("initial_value"), division)
        arguments.pop("shape", None)
        arguments["dtype"] = division.dtype
        variable = DividedVariable(self._reducer, division, arguments)
        if division.worker_index == 0 and division_of(kwargs.get("colocate_with")) is None:
            print_to_stderr(
                f"{division.name} {list(division.shape)} is divided between {division.num_workers} "
                f"workers: {division.own_bytes:,} of {division.num_bytes:,} bytes in each."
            )
        return variable


def _full_name(name: str) -> str:
    """Returns a variable's name after that of its layer, which TensorFlow adds when it is made."""
    scope = tf.get_current_name_scope() if tf.executing_eagerly() else ""
    return f"{scope}/{name}" if scope else name
