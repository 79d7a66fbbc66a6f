"""Compression: gradients sent in half precision, which halves the bytes for a bounded error.

Each worker rounds its float32 gradients to the nearest half-precision values (fp16 or bf16) and
sends those. Every worker, the sender as well, casts the received values to float32 and adds them in
the order of the workers. So no two half-precision values are ever added, and all workers get the
same bits. A worker that is alone rounds nothing.

Let g_i be the value of worker i, and u half of the gap between 1 and the next larger number: 2^-11
for fp16 (IEEE 754 binary16), 2^-8 for bf16. Each rounding changes a value by a relative error of at
most u (Higham, "Accuracy and Stability of Numerical Algorithms", theorem 2.2). So the error of a
sum is at most

    u sum(|g_i|),              if every worker adds all values,
    (2 u + u^2) sum(|g_i|),    if each worker adds a share, and sends the sum rounded once more.

The bound is relative to the added values and not to their sum, in which they may cancel out. The
rows of `tf.IndexedSlices` are rounded once. Adding in float32 has its usual error in addition.

The bound does not hold outside the range of fp16. Below 2^-14 (0.00006) the error is at most 2^-25
(0.00000003), and a value may become 0; from 65,520 on a value, or the sum of a share, becomes
infinite. Use bf16 then, which has the range of float32, or scale the loss.

Bytes sent by each of n workers, for B bytes of float32:

    a ring of float32                       2 (n - 1) / n B
    all half-precision values to everyone   (n - 1) / 2 B      1/2 of the ring for 2 workers,
                                                               3/4 for 3, as much for 4
    by shares                               (n - 1) / n B      1/2 of the ring for any n

Shares need an engine that sends another tensor to each worker (`HasAllToAll`). Horovod can; over
gRPC compression is worth it for 2 or 3 workers, and sends more bytes for more than 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, TypeAlias, runtime_checkable

import tensorflow as tf

from tfdist.strategies.reductions.engine import Collectives

Compression: TypeAlias = Literal["fp16", "bf16"]

_HALVES = {"fp16": tf.float16, "bf16": tf.bfloat16}
# Up to this number, every worker gets all values: one message and one rounding less than shares.
_FEW_WORKERS = 3


@runtime_checkable
class HasAllToAll(Protocol):
    """An engine that can send another tensor to each worker."""

    def all_to_all(self, shares: tf.Tensor, name: str) -> tf.Tensor:
        """Sends row i of `shares` to worker i; returns the rows for this worker, in worker order.

        Both have the shape [workers, elements].
        """


def find_half(compression: Compression | None) -> tf.DType | None:
    """Returns the dtype in which float32 gradients are sent; None is float32 itself.

    Raises:
      ValueError: If `compression` is not "fp16", "bf16" or None.
    """
    if compression is None:
        return None
    if not isinstance(compression, str) or compression not in _HALVES:
        raise ValueError(
            f"compression must be 'fp16', 'bf16' or None, got {compression!r}. None sends "
            "gradients as they are."
        )
    return _HALVES[compression]


def compressed_sum(
    collectives: Collectives, tensors: Sequence[tf.Tensor], half: tf.DType, name: str
) -> list[tf.Tensor]:
    """Sums each float32 tensor over the workers, all of them in one half-precision message.

    A collective, on the host. The error is bounded above.

    Returns:
      One float32 tensor per input, of its shape.
    """
    flat = tf.concat([tf.reshape(t, [-1]) for t in tensors], axis=0)  # [elements]
    own = tf.cast(flat, half)  # [elements]
    if collectives.num_workers > _FEW_WORKERS and isinstance(collectives, HasAllToAll):
        total = _sum_by_shares(collectives, own, name)  # [elements]
    else:
        gathered = collectives.gather(own, name, same_rows=True)  # [workers * elements]
        total = _add(tf.split(gathered, collectives.num_workers))  # [elements]
    parts = tf.split(total, [tf.size(t) for t in tensors])
    return [tf.reshape(part, tf.shape(t)) for part, t in zip(parts, tensors, strict=True)]


def compressed_gather(
    collectives: Collectives, rows: tf.Tensor, half: tf.DType, name: str
) -> tf.Tensor:
    """Concatenates the workers' float32 rows, sent in half precision; a collective.

    [own_rows, ...] becomes [all_rows, ...].
    """
    return tf.cast(collectives.gather(tf.cast(rows, half), name), tf.float32)


def _sum_by_shares(collectives: Collectives, own: tf.Tensor, name: str) -> tf.Tensor:
    """Sums one share on each worker, then gathers the sums: reduce-scatter and all-gather."""
    assert isinstance(collectives, HasAllToAll)
    count, elements = collectives.num_workers, tf.size(own)
    # Padded so that it splits evenly.
    shares = tf.reshape(tf.pad(own, [[0, -elements % count]]), [count, -1])  # [workers, share]
    received = collectives.all_to_all(shares, f"{name}_shares")  # [workers, share]
    share = _add([received[i] for i in range(count)])  # [share]
    share = tf.cast(share, own.dtype)
    sums = collectives.gather(share, f"{name}_sums", same_rows=True)  # [workers * share]
    return tf.cast(sums[:elements], tf.float32)  # [elements]


def _add(halves: Sequence[tf.Tensor]) -> tf.Tensor:
    """Adds in float32, one after the other: a sum along an axis may take another order."""
    return tf.add_n([tf.cast(half, tf.float32) for half in halves])


def to_copied(tensor: tf.Tensor) -> tf.Tensor:
    """Returns bfloat16's bits as float16, for engines that copy values but do not know bfloat16."""
    return tf.bitcast(tensor, tf.float16) if tensor.dtype == tf.bfloat16 else tensor


def from_copied(tensor: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Reverses `to_copied`."""
    return tf.bitcast(tensor, dtype) if tensor.dtype != dtype else tensor
