"""Which gradients travel together.

One message a gradient pays the network's latency for each; one message for all can only leave
when the backward pass has ended. So gradients are packed, in the order in which the backward pass
makes them, into buckets that leave as soon as their last member exists. A gradient that is large
enough leaves alone, and is not copied into a bucket; the small ones around it share one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Gradient:
    """What packing needs to know of one gradient: its dtype's name and its size."""

    dtype: str
    num_bytes: int


def pack(gradients: Sequence[Gradient], *, max_bytes: int, alone_bytes: int) -> list[list[int]]:
    """Packs gradients into buckets.

    Args:
      gradients: One a variable, in the order in which the forward pass uses the variables.
      max_bytes: A bucket is closed before it would grow beyond this.
      alone_bytes: A gradient of this size or more gets a bucket of its own.

    Returns:
      Buckets of indices into `gradients`, those that exist first at the front: the backward pass
      makes the last layers' gradients first. A bucket holds one dtype.
    """
    buckets: list[list[int]] = []
    open_bucket: dict[str, tuple[list[int], int]] = {}
    for index in reversed(range(len(gradients))):
        gradient = gradients[index]
        if gradient.num_bytes >= alone_bytes:
            buckets.append([index])
            continue
        bucket, size = open_bucket.get(gradient.dtype, ([], 0))
        if not bucket or size + gradient.num_bytes > max_bytes:
            bucket, size = [], 0
            buckets.append(bucket)
        bucket.append(index)
        open_bucket[gradient.dtype] = (bucket, size + gradient.num_bytes)
    return buckets


def describe_sizes(*, max_bytes: int, alone_bytes: int) -> str:
    """Says in words how gradients are packed."""
    return f"buckets of up to {_in_mb(max_bytes)}, from {_in_mb(alone_bytes)} on alone"


def _in_mb(num_bytes: int) -> str:
    return f"{num_bytes / (1 << 20):g} MB"
