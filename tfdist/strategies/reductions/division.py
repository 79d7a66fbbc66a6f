"""Divisions: which worker has which rows of a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1


@dataclass(frozen=True, kw_only=True)
class Division:
    """The division of a table between the workers: each has a range of rows, in their order.

    Of 11 rows three workers have 4, 4 and 3, as TensorFlow divides a partitioned variable.

    Attributes:
      name: The table's name.
      shape: The whole table's shape, [rows, ...].
      dtype: Its dtype.
      num_workers: The number of workers.
      worker_index: The index of this worker.
    """

    name: str
    shape: tuple[int, ...]
    dtype: tf.DType
    num_workers: int
    worker_index: int

    @property
    def num_rows(self) -> int:
        return self.shape[0]

    def start(self, worker: int) -> int:
        """Returns a worker's first row; of the worker behind the last, the number of rows."""
        each, more = divmod(self.num_rows, self.num_workers)
        return worker * each + min(worker, more)

    @property
    def own_start(self) -> int:
        return self.start(self.worker_index)

    @property
    def own_stop(self) -> int:
        return self.start(self.worker_index + 1)

    @property
    def own_shape(self) -> tuple[int, ...]:
        return (self.own_stop - self.own_start, *self.shape[1:])

    @property
    def row_bytes(self) -> int:
        return _size(self.shape[1:]) * int(self.dtype.size)

    @property
    def num_bytes(self) -> int:
        """The bytes of the whole table."""
        return self.num_rows * self.row_bytes

    @property
    def own_bytes(self) -> int:
        return self.own_shape[0] * self.row_bytes

    @property
    def row_dtype(self) -> tf.DType:
        """The dtype in which numbers of rows are sent."""
        return tf.int32 if self.num_rows < 2**31 else tf.int64

    def owners(self, rows: tf.Tensor) -> tf.Tensor:
        """Returns the worker that has each row, int32."""
        each, more = divmod(self.num_rows, self.num_workers)
        large = more * (each + 1)  # The rows of the workers that have one more.
        in_large = rows // (each + 1)
        in_small = more + (rows - large) // max(each, 1)
        return tf.cast(tf.where(rows < large, in_large, in_small), tf.int32)

    def describe(self) -> str:
        """Describes the division; equal on all workers."""
        return f"{self.dtype.name} {list(self.shape)} divided between {self.num_workers} workers"

    def slice_info(self, name: str) -> Any:
        """Returns TensorFlow's description of this worker's rows, for a name in checkpoints."""
        offset = [self.own_start, *(0 for _ in self.shape[1:])]
        return v1.Variable.SaveSliceInfo(name, [*self.shape], offset, [*self.own_shape])


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for dimension in shape:
        size *= dimension
    return size


def division_of(variable: Any) -> Division | None:
    """Returns how a variable, or the slot of one, is divided; None if each worker has all of it.

    This is all that the other rooms ask. A variable of Keras 3 is that of TensorFlow in it.
    """
    inner = variable if isinstance(variable, tf.Variable) else getattr(variable, "value", None)
    division: Division | None = getattr(inner, "division", None)
    return division
