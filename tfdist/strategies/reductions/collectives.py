"""Reductions of gradients over workers: from the device, by buckets and the wire, to the host.

A step with n workers and three gradients, of which one is at least the bucketing threshold and one
is in bfloat16; each worker does the same:

    device            host            bucket        wire            host
    ---------------   -------------   -----------   -------------   ---------------------------
    [4096, 1024] ---> [4096, 1024] -> by itself --> sum over the -> [4096, 1024] / n
                                                    workers
    [1024] ---------> [1024] -----.
                                  +-> [1664] -----> sum over the -> split -> [1024] / n
    [10, 64] bf16 --> [10, 64] ---'                 workers              '-> [10, 64] / n -> bf16
                      float32

1. *device -> host*: `_sendable` copies a tensor, in a dtype in which a sum does not overflow.
2. *host -> bucket*: `buckets.pack` decides; the engine joins the members of a bucket. Joined, they
   are flat: [elements of all members].
3. *wire*: the engine (gRPC, Horovod) sums over the workers: around a ring, where each of n workers
   sends 2 (n - 1) / n of the bytes (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms
   for clusters of workstations", 2009), or directly (`direct_exchange`). With compression,
   `compression.compressed_sum` sends half-precision values and adds them in float32.
4. *-> host*: the sum is split into the members' shapes, divided by n for a mean, and cast back.

Sparse gradients (`tf.IndexedSlices`) have other rows on each worker: all rows are gathered, and
[rows_0, columns], ..., [rows_n-1, columns] become [rows_0 + ... + rows_n-1, columns]. Then rows of
equal index are added up, in the same order on every worker (`slices.add_equal_rows`).

Every function here adds ops to the current graph, on the host. Each is a collective: every worker
must build and run the same ones, or the others wait.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol, runtime_checkable

import tensorflow as tf

from tfdist.process.endings import OneLineError
from tfdist.strategies.placement import HOST
from tfdist.strategies.reductions.buckets import Gradient, pack
from tfdist.strategies.reductions.compression import compressed_gather, compressed_sum
from tfdist.strategies.reductions.division import Division
from tfdist.strategies.reductions.engine import Collectives
from tfdist.strategies.reductions.row_exchange import send_to_owners
from tfdist.strategies.reductions.slices import Value, add_equal_rows, on_values

# The dtype of a sum: half-precision gradients of many workers can overflow when they are added.
_SUMMED_AS = {
    tf.float16: tf.float32,
    tf.bfloat16: tf.float32,
    tf.float32: tf.float32,
    tf.float64: tf.float64,
    tf.int8: tf.int32,
    tf.uint8: tf.int32,
    tf.int16: tf.int32,
    tf.uint16: tf.int32,
    tf.int32: tf.int32,
    tf.uint32: tf.int64,
    tf.int64: tf.int64,
    tf.bool: tf.int32,
}


@runtime_checkable
class SumsDirectly(Protocol):
    """An engine with a faster way for some sums that are made together."""

    def sum_directly(
        self, tensors: Sequence[tf.Tensor], names: Sequence[str]
    ) -> list[tf.Tensor | None]:
        """Sums those tensors that it has a faster way for, each in a message.

        Args:
          tensors: The tensors, each for a message by itself.
          names: The names of the messages; they may be equal.

        Returns:
          The sum of each tensor; None for those that are left to `Collectives.sum`.
        """


class DenseGradientError(OneLineError, ValueError):
    """The gradient of a divided table is not of some of its rows."""


def is_mean(reduce_op: Any) -> bool:
    """Returns whether a `tf.distribute.ReduceOp` is MEAN; ValueError if it is not SUM either."""
    name = str(getattr(reduce_op, "value", reduce_op)).upper()
    if name not in ("SUM", "MEAN"):
        raise ValueError(f"Unsupported reduce op: {reduce_op}. Use ReduceOp.SUM or ReduceOp.MEAN.")
    return name == "MEAN"


def as_fraction(value: Value) -> Value:
    """Returns a value in the dtype of its mean: that of `tf.truediv` for integers."""
    dtype = value.dtype
    if not (dtype.is_integer or dtype.is_bool):
        return value
    wide = tf.float32 if dtype.size < 4 else tf.float64
    return on_values(lambda tensor: tf.cast(tensor, wide), value)


def all_reduce(
    collectives: Collectives,
    values: Sequence[Value],
    *,
    mean: bool,
    name: str,
    names: Sequence[str] = (),
    half: tf.DType | None = None,
    adds_equal_rows: bool = True,
    divisions: Sequence[Division | None] = (),
) -> tuple[list[Value], int]:
    """Combines each value over all workers; every worker gets the same result.

    Args:
      collectives: The engine.
      values: Tensors or `tf.IndexedSlices`. Shapes and dtypes agree between workers, but slices
        may have different numbers of rows. float16 and bfloat16 are summed in float32 and cast
        back.
      mean: Whether the sum is divided by the number of workers.
      name: Prefix of the ops' names.
      names: The name that each value belongs to, such as a variable's. Workers pair values of the
        same name; without names, values at the same place in `values`.
      half: The dtype in which float32 values are sent (see `compression`); None sends float32.
      adds_equal_rows: Whether rows of equal index are added up; equal on all workers.
      divisions: The division of each value's variable, whose slices go to the owners of their rows;
        empty if none is divided.

    Returns:
      (one value per input, of the same kind, shape and dtype, on the host; the number of buckets
      of the dense values).

    Raises:
      TypeError: If a dtype cannot be summed.
      DenseGradientError: If the gradient of a divided table is not of rows.
    """
    with tf.device(HOST), tf.name_scope(name):
        for value, division in zip(values, divisions, strict=False):
            if division is not None and not isinstance(value, tf.IndexedSlices):
                raise DenseGradientError(
                    f"the gradient of {division.name}, which is divided between "
                    f"{division.num_workers} workers, has all of its {division.num_bytes:,} bytes. "
                    "Look rows up by tf.nn.embedding_lookup or tf.gather only, and give the "
                    "optimizer the tf.IndexedSlices of tape.gradient as they are."
                )
        dense = [i for i, value in enumerate(values) if not isinstance(value, tf.IndexedSlices)]
        sendable = [_sendable(values[i]) for i in dense]  # each of its variable's shape
        dtypes = [sent_as(values[i].dtype, half) for i in dense]
        buckets = pack(
            [_describe(t, dtype) for t, dtype in zip(sendable, dtypes, strict=True)],
            bucket_size_bytes=collectives.bucket_size_bytes,
            threshold_bytes=collectives.threshold_bytes,
        )
        reduced: list[Value] = list(values)
        divisor = collectives.num_workers if mean else 1
        bucket_names = [
            _bucket_name([names[dense[i]] for i in bucket]) if names else f"bucket_{number}"
            for number, bucket in enumerate(buckets)
        ]
        alone = {
            i: bucket_name
            for bucket_name, (i, *others) in zip(bucket_names, buckets, strict=True)
            if not others and dtypes[i] == sendable[i].dtype
        }
        direct: dict[int, tf.Tensor | None] = {}
        if isinstance(collectives, SumsDirectly):
            found = collectives.sum_directly([sendable[i] for i in alone], [*alone.values()])
            direct = dict(zip(alone, found, strict=True))
        for bucket_name, bucket in zip(bucket_names, buckets, strict=True):
            members, dtype = [sendable[i] for i in bucket], dtypes[bucket[0]]
            total = direct.get(bucket[0])
            if total is not None:
                sums = [total]
            elif dtype == members[0].dtype:
                sums = collectives.sum(members, bucket_name)  # each of its member's shape
            else:
                sums = compressed_sum(collectives, members, dtype, bucket_name)
            for i, total in zip(bucket, sums, strict=True):
                original = values[dense[i]]
                total.set_shape(original.shape)
                reduced[dense[i]] = _finish(total, original.dtype, divisor)
        for i, value in enumerate(values):
            if isinstance(value, tf.IndexedSlices):
                slices_name = names[i] if names else f"slices_{i}"
                division = divisions[i] if divisions else None
                if division is not None:
                    if adds_equal_rows:  # Fewer bytes to send.
                        value = add_equal_rows(value)
                    value = on_values(_sendable, value)
                    rows = send_to_owners(collectives, division, value, slices_name)
                    rows = on_values(partial(_finish, dtype=division.dtype, divisor=divisor), rows)
                    reduced[i] = add_equal_rows(rows) if adds_equal_rows else rows
                    continue
                rows = _reduce_slices(collectives, value, divisor, half, slices_name)
                reduced[i] = add_equal_rows(rows) if adds_equal_rows else rows
        return reduced, len(buckets)


def _bucket_name(names: Sequence[str]) -> str:
    """Returns a name that only a bucket of the same values in the same order has."""
    if len(names) == 1:
        return names[0]
    return f"{names[0]}_and_{len(names) - 1}_more_{zlib.crc32(' '.join(names).encode()):08x}"


def add_replicas(parts: Sequence[Value], *, mean: bool) -> Value:
    """Combines the values that the replicas of this worker have, on the host.

    Args:
      parts: One value that stands for all replicas, or one per replica, of equal kind, shape and
        dtype. float16 and bfloat16 are summed in float32.
      mean: Whether the sum is divided by the number of replicas.

    Returns:
      One value of the same kind and dtype. Slices have the rows of all replicas.
    """
    if len(parts) == 1:
        return parts[0]
    with tf.device(HOST), tf.name_scope("add_replicas"):
        if isinstance(parts[0], tf.IndexedSlices):
            # [rows of all replicas, ...], and [rows of all replicas]
            rows = tf.concat([_sendable(part.values) for part in parts], axis=0)
            indices = tf.concat([part.indices for part in parts], axis=0)
            values = _finish(rows, parts[0].dtype, len(parts) if mean else 1)
            return tf.IndexedSlices(values, indices, parts[0].dense_shape)
        total = tf.add_n([_sendable(part) for part in parts])  # the shape of one part
        return _finish(total, parts[0].dtype, len(parts) if mean else 1)


def sent_as(dtype: tf.DType, half: tf.DType | None) -> tf.DType:
    """Returns the dtype in which values of one dtype are sent; float32 in the half, if not None."""
    return half if half is not None and dtype == tf.float32 else _SUMMED_AS.get(dtype, dtype)


def _reduce_slices(
    collectives: Collectives,
    slices: tf.IndexedSlices,
    divisor: int,
    half: tf.DType | None,
    name: str,
) -> tf.IndexedSlices:
    rows, dtype = _sendable(slices.values), sent_as(slices.values.dtype, half)  # [own_rows, ...]
    if dtype == rows.dtype:
        rows = collectives.gather(rows, f"{name}_values")  # [all_rows, ...]
    else:
        rows = compressed_gather(collectives, rows, dtype, f"{name}_values")  # [all_rows, ...]
    indices = collectives.gather(tf.identity(slices.indices), f"{name}_indices")  # [all_rows]
    rows.set_shape(tf.TensorShape([None]).concatenate(slices.values.shape[1:]))
    indices.set_shape([None])
    return tf.IndexedSlices(
        _finish(rows, slices.values.dtype, divisor), indices, slices.dense_shape
    )


def broadcast(
    collectives: Collectives, tensor: tf.Tensor, *, name: str, sender: int = 0
) -> tf.Tensor:
    """Returns, on every worker, the value that `tensor` has on one of them.

    Engines send worker 0's value. That of another is a sum, in which the others are 0: of its bits
    as integers, which is exact, and twice as many bytes on the wire.

    Raises:
      TypeError: If the dtype cannot be sent (strings, complex numbers).
      ValueError: If the shape is not fully known: the receivers must know it beforehand.
    """
    if not tensor.shape.is_fully_defined():
        raise ValueError(
            f"{name}: the shape {tensor.shape} of this initial value is not fully known, and a "
            "value sent to other workers must have one. Give the variable a static shape."
        )
    with tf.device(HOST):
        sent = _sendable(tensor)  # the shape of `tensor`
        if sender == 0:
            received = collectives.broadcast(sent, name)
        else:
            bits = tf.bitcast(sent, {4: tf.int32, 8: tf.int64}[sent.dtype.size])
            own = bits if collectives.worker_index == sender else tf.zeros_like(bits)
            (total,) = collectives.sum([own], f"{name}/bits")
            received = tf.bitcast(total, sent.dtype)
        return tf.cast(received, tensor.dtype)


def _sendable(tensor: tf.Tensor) -> tf.Tensor:
    """Copies a tensor to the host, in a dtype that every engine can add; the shape stays."""
    dtype = _SUMMED_AS.get(tensor.dtype)
    if dtype is None:
        raise TypeError(
            f"cannot combine {tensor.name} over workers: its dtype is {tensor.dtype.name}, and "
            f"allowed are {', '.join(d.name for d in _SUMMED_AS)}. Cast it first."
        )
    return tf.identity(tensor) if dtype == tensor.dtype else tf.cast(tensor, dtype)


def _describe(tensor: tf.Tensor, dtype: tf.DType) -> Gradient:
    elements = tensor.shape.num_elements() or 0
    return Gradient(dtype=dtype.name, num_bytes=elements * dtype.size)


def _finish(total: tf.Tensor, dtype: tf.DType, divisor: int) -> tf.Tensor:
    """Divides a sum and casts it to the dtype of the values; the shape stays."""
    if divisor > 1:
        total = tf.cast(total / tf.cast(divisor, total.dtype), total.dtype)
    return total if total.dtype == dtype else tf.cast(total, dtype)
