"""Gradients that go to other workers in half precision: half of the bytes, for a stated error.

Each worker rounds its float32 gradients to the nearest halves, and sends those. Every worker, the
sender too, takes these halves back to float32 and adds them there, in the workers' order: nobody
adds halves, and all get the same bits. Nothing is rounded where a worker is alone.

Let g_i be what worker i has of a value, and u half of the gap between 1 and its next neighbour:
2^-11 for fp16 (IEEE 754's binary16), 2^-8 for bf16. A value's relative error is at most u each time
that it is rounded (Higham, "Accuracy and Stability of Numerical Algorithms", theorem 2.2). So a sum
is off by at most

    u sum(|g_i|),              if it is added up on every worker,
    (2 u + u^2) sum(|g_i|),    if it is added up in shares, which are rounded once more.

That is relative to the values added, and not to their sum: these may cancel out. Rows of
`tf.IndexedSlices` are rounded once. Adding in float32 has its own error, as without compression.

Outside of fp16's range the bound does not hold. Below 2^-14 (0.00006) a value is off by up to 2^-25
(0.00000003) instead, and may become 0; from 65,520 on it becomes infinite, and so does a share's
sum. Take bf16 then, which has the range of float32, or scale the loss.

Of B bytes of float32, each of n workers sends 2 (n - 1) / n B around a ring, or (n - 1) / 2 B if it
gives its halves to everybody: 1/2 as much for 2 workers, 3/4 for 3, as much for 4, more beyond.
In shares it is 1/2 for any number. These need an engine that can send a share to each worker:
Horovod can; over gRPC compression pays for 2 or 3 workers, and costs for more than 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, TypeAlias, runtime_checkable

import tensorflow as tf

from tfdist.strategies.reductions.engine import Collectives

Compression: TypeAlias = Literal["fp16", "bf16"]

_HALVES = {"fp16": tf.float16, "bf16": tf.bfloat16}
# Up to so many workers, each gets all halves: that is one message less, and one rounding.
_FEW_WORKERS = 3


@runtime_checkable
class SendsShares(Protocol):
    """An engine that can send something else to each worker."""

    def all_to_all(self, shares: tf.Tensor, name: str) -> tf.Tensor:
        """Gives worker i row i of `shares`; returns everybody's row for this one, in order."""


def find_half(compression: Compression | None) -> tf.DType | None:
    """Returns the dtype in which float32 gradients travel; None is float32 itself.

    Raises:
      ValueError: If `compression` is anything else than "fp16", "bf16" or None.
    """
    if compression is None:
        return None
    if not isinstance(compression, str) or compression not in _HALVES:
        raise ValueError(
            f"compression must be 'fp16', 'bf16' or None, got {compression!r}. None sends "
            "gradients as they are."
        )
    return _HALVES[compression]


def sum_of_halves(
    collectives: Collectives, tensors: Sequence[tf.Tensor], half: tf.DType, name: str
) -> list[tf.Tensor]:
    """Sums each float32 tensor over the workers, all of them in one message of halves.

    A collective, on the host. The error is stated above.
    """
    flat = tf.concat([tf.reshape(t, [-1]) for t in tensors], axis=0)
    own = tf.cast(flat, half)
    if collectives.num_workers > _FEW_WORKERS and isinstance(collectives, SendsShares):
        total = _sum_by_shares(collectives, own, name)
    else:
        everyones = collectives.gather(own, name, same_rows=True)
        total = _add(tf.split(everyones, collectives.num_workers))
    parts = tf.split(total, [tf.size(t) for t in tensors])
    return [tf.reshape(part, tf.shape(t)) for part, t in zip(parts, tensors, strict=True)]


def gather_halves(
    collectives: Collectives, rows: tf.Tensor, half: tf.DType, name: str
) -> tf.Tensor:
    """Concatenates the workers' float32 rows, which travel as halves; a collective."""
    return tf.cast(collectives.gather(tf.cast(rows, half), name), tf.float32)


def _sum_by_shares(collectives: Collectives, own: tf.Tensor, name: str) -> tf.Tensor:
    """Each worker sums one share, and gives it to the others."""
    assert isinstance(collectives, SendsShares)
    count, elements = collectives.num_workers, tf.size(own)
    shares = tf.reshape(tf.pad(own, [[0, -elements % count]]), [count, -1])
    received = collectives.all_to_all(shares, f"{name}_shares")
    share = _add([received[i] for i in range(count)])
    sums = collectives.gather(tf.cast(share, own.dtype), f"{name}_sums", same_rows=True)
    return tf.cast(sums[:elements], tf.float32)


def _add(halves: Sequence[tf.Tensor]) -> tf.Tensor:
    """Adds in float32, one after the other: a sum along an axis may take another order."""
    return tf.add_n([tf.cast(half, tf.float32) for half in halves])


def to_copied(tensor: tf.Tensor) -> tf.Tensor:
    """Returns bfloat16's bits as float16's, for engines that only copy and have no bfloat16."""
    return tf.bitcast(tensor, tf.float16) if tensor.dtype == tf.bfloat16 else tensor


def from_copied(tensor: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Undoes `to_copied`."""
    return tf.bitcast(tensor, dtype) if tensor.dtype != dtype else tensor
