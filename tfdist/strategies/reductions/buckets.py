"""Message buckets: which gradients, and which small sums, travel in one message.

One message a gradient pays the network's latency for each; one message for all can only leave
when the backward pass has ended. So gradients are packed, in the order in which the backward pass
makes them, into buckets that leave as soon as their last member exists. A gradient that is large
enough leaves alone, and is not copied into a bucket; the small ones around it share one.

A message costs about 0.4 ms of a worker's time, whatever is in it. So small sums that each step
needs share one: the Estimator's numbers about stopping and saving go with the last small gradients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tensorflow as tf

# Copying so many bytes into a shared message and out again is cheaper than a message.
_MAX_BYTES = 256 << 10


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


@dataclass(frozen=True, kw_only=True)
class Sum:
    """What grouping needs to know of one sum.

    Attributes:
      dtype: Its dtype's name.
      num_bytes: Its size.
      needs: The numbers of the other sums that its own value is made of.
    """

    dtype: str
    num_bytes: int
    needs: frozenset[int]


def group(sums: Mapping[int, Sum]) -> list[list[int]]:
    """Groups the sums that share a message: small, of one dtype, and none made of another one.

    Args:
      sums: By their numbers, which count in the order in which they were made.

    Returns:
      The numbers of each group of at least two, in ascending order. A later sum is preferred: what
      waits for the end of a step anyway is not sent sooner on its own.
    """
    groups: list[list[int]] = []
    for dtype in sorted({one.dtype for one in sums.values()}):
        members: list[int] = []
        size = 0
        for number in sorted(sums, reverse=True):
            one = sums[number]
            if one.dtype != dtype or size + one.num_bytes > _MAX_BYTES:
                continue
            # With what depends on a member, and what a member depends on, it would wait for itself.
            if any(number in sums[other].needs or other in one.needs for other in members):
                continue
            members.append(number)
            size += one.num_bytes
        if len(members) > 1:
            groups.append(members[::-1])
    return groups


def results_behind(
    graph: tf.Graph, results: Sequence[tf.Tensor], wanted: Sequence[tf.Tensor | tf.Operation]
) -> list[frozenset[int]]:
    """Says for each wanted tensor or operation which of the results it is made of, by number."""
    marks = {result.op.name: 1 << number for number, result in enumerate(results)}
    before = {
        op.name: [tensor.op.name for tensor in op.inputs] + [one.name for one in op.control_inputs]
        for op in graph.get_operations()
    }
    found = dict.fromkeys(before, 0)
    has_changed = True
    while has_changed:  # Twice, and more often with loops, whose edges lead back.
        has_changed = False
        for name, sources in before.items():
            mask = found[name] | marks.get(name, 0)
            for source in sources:
                mask |= found[source]
            if mask != found[name]:
                found[name] = mask
                has_changed = True
    ops = [one.op if isinstance(one, tf.Tensor) else one for one in wanted]
    count = range(len(results))
    return [frozenset(i for i in count if found[op.name] >> i & 1) for op in ops]
