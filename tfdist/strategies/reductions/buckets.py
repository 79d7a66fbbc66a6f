"""Message buckets: the gradients, and the small sums, that share one message.

One message per gradient pays the latency of the network for each; one message for all can only be
sent when the backward pass has ended. So gradients are packed into buckets, in the order in which
the backward pass makes them, and a bucket is sent as soon as its last member exists. PyTorch's DDP
does the same (Li et al., "PyTorch Distributed", VLDB 2020, section 3.2), and so does Horovod's
tensor fusion (Sergeev and Del Balso, 2018, arXiv:1802.05799). Two numbers decide:

    bucket size            a bucket is closed before it would grow beyond this
    bucketing threshold    a gradient of this size or more is not copied into a bucket: it is a
                           message by itself

    forward order:     kernel_1    bias_1    kernel_2    bias_2    kernel_3    bias_3
                       0.1 MB      1 KB      4 MB        1 KB      0.2 MB      1 KB
    buckets:           1: bias_3, kernel_3, bias_2, bias_1, kernel_1
                       2: kernel_2

Besides gradients, the Estimator reduces small numbers in each step: the loss, and whether a worker
wants to stop or to save. A message costs about 0.4 ms of a worker's time, whatever its size
(`docs/performance.md`), so `group_sums` puts these numbers into the message of the last small
gradients where a direct exchange makes that possible.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tensorflow as tf

from tfdist.strategies.graph_walks import bits_behind

# Copying this many bytes into a shared message and out again is cheaper than a message.
_MAX_SHARED_BYTES = 256 << 10


@dataclass(frozen=True, kw_only=True)
class Gradient:
    """The properties of a gradient that packing depends on.

    Attributes:
      dtype: The name of the dtype in which it is sent.
      num_bytes: Its size in that dtype.
    """

    dtype: str
    num_bytes: int


def pack(
    gradients: Sequence[Gradient], *, bucket_size_bytes: int, threshold_bytes: int
) -> list[list[int]]:
    """Packs gradients into buckets.

    Args:
      gradients: One per variable, in the order in which the forward pass uses the variables.
      bucket_size_bytes: A bucket is closed before it would grow beyond this.
      threshold_bytes: A gradient of this size or more gets its own bucket.

    Returns:
      Buckets of indices into `gradients`, from the last layers to the first: that is the order in
      which the backward pass makes them. A bucket holds one dtype.
    """
    buckets: list[list[int]] = []
    open_bucket: dict[str, tuple[list[int], int]] = {}
    for index in reversed(range(len(gradients))):
        gradient = gradients[index]
        if gradient.num_bytes >= threshold_bytes:
            buckets.append([index])
            continue
        bucket, size = open_bucket.get(gradient.dtype, ([], 0))
        if not bucket or size + gradient.num_bytes > bucket_size_bytes:
            bucket, size = [], 0
            buckets.append(bucket)
        bucket.append(index)
        open_bucket[gradient.dtype] = (bucket, size + gradient.num_bytes)
    return buckets


@dataclass(frozen=True, kw_only=True)
class Sum:
    """The properties of a sum that grouping depends on.

    Attributes:
      dtype: The name of its dtype.
      num_bytes: Its size.
      depends_on: The numbers of the other sums that its own input depends on.
    """

    dtype: str
    num_bytes: int
    depends_on: frozenset[int]


def group_sums(sums: Mapping[int, Sum]) -> list[list[int]]:
    """Groups the sums that share a message: small, of one dtype, and independent of one another.

    Their numbers count in the order in which the sums were made. Groups have at least two, in
    ascending order. Later sums are preferred: a value that waits for the end of a step anyway does
    not need an earlier message.
    """
    groups: list[list[int]] = []
    for dtype in sorted({candidate.dtype for candidate in sums.values()}):
        members: list[int] = []
        size = 0
        for number in sorted(sums, reverse=True):
            candidate = sums[number]
            if candidate.dtype != dtype or size + candidate.num_bytes > _MAX_SHARED_BYTES:
                continue
            # In one message with a sum that it depends on, a sum would wait for itself.
            if any(
                number in sums[other].depends_on or other in candidate.depends_on
                for other in members
            ):
                continue
            members.append(number)
            size += candidate.num_bytes
        if len(members) > 1:
            groups.append(members[::-1])
    return groups


def find_dependencies(
    graph: tf.Graph, results: Sequence[tf.Tensor], targets: Sequence[tf.Tensor | tf.Operation]
) -> list[frozenset[int]]:
    """Returns, for each target, the numbers of the results that it depends on.

    Inputs and control inputs count, through loops of the old kind as well.
    """
    # One bit per result; the bits of an op are those of all that it depends on.
    own_bits = {result.op: 1 << number for number, result in enumerate(results)}
    bits = bits_behind(graph.get_operations(), own_bits, control_inputs=True)
    ops = [target.op if isinstance(target, tf.Tensor) else target for target in targets]
    count = range(len(results))
    return [frozenset(i for i in count if bits[op] >> i & 1) for op in ops]
