"""What one traced step spent its time on, from TensorFlow's own record of it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

# The label of a record reads "name = Type(inputs)".
_INPUT = re.compile(r"= (Iterator\w*GetNext\w*|QueueDequeue\w*)\(")
_REDUCTION = re.compile(r"= (Collective|Horovod)\w+\(")


@dataclass(frozen=True, kw_only=True)
class StepShares:
    """Shares of a traced step's time, each from 0 to 1; they may overlap.

    Attributes:
      input: While an op waited for the next batch.
      reductions: While a collective ran: sending, and waiting for the slowest worker.
    """

    input: float
    reductions: float


def shares_of(step_stats: Any) -> StepShares | None:
    """Computes the shares from the `step_stats` of a RunMetadata; None if nothing was recorded."""
    nodes = [node for device in step_stats.dev_stats for node in device.node_stats]
    spans = [(_span(node), node.timeline_label) for node in nodes]
    if not spans:
        return None
    start = min(span[0] for span, _ in spans)
    duration = max(span[1] for span, _ in spans) - start
    if duration <= 0:
        return None
    return StepShares(
        input=covered(span for span, label in spans if _INPUT.search(label)) / duration,
        reductions=covered(span for span, label in spans if _REDUCTION.search(label)) / duration,
    )


def covered(spans: Iterable[tuple[int, int]]) -> int:
    """Returns the length of the union of spans (start, end)."""
    total, reached = 0, None
    for start, end in sorted(spans):
        begin = start if reached is None else max(start, reached)
        total += max(0, end - begin)
        reached = end if reached is None else max(reached, end)
    return total


def _span(node: Any) -> tuple[int, int]:
    return node.all_start_micros, node.all_start_micros + node.all_end_rel_micros
