"""Which sums travel together where workers exchange directly.

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
