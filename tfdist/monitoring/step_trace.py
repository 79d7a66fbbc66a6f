"""What one traced step spent its time on, from TensorFlow's own record of it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

# The label of a record reads "name = Type(inputs)".
_INPUT = re.compile(r"= (Iterator\w*GetNext\w*|QueueDequeue\w*)\(")
_REDUCTION = re.compile(r"= (Collective|Horovod)\w+\(")
# The name scope of what `tfdist.strategies.exchange` makes of a collective.
_EXCHANGED = re.compile(r"(?:^|\s)(\S+_exchanged)/\S* = (\w+)\(")
_TASK = re.compile(r"^/job:[^/]+/replica:\d+/task:\d+")

Record: TypeAlias = tuple[tuple[int, int], str]  # (start, end) in microseconds, and the label


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
    records = _own_records(step_stats)
    if not records:
        return None
    start = min(span[0] for span, _ in records)
    duration = max(span[1] for span, _ in records) - start
    if duration <= 0:
        return None
    exchanged = [record for record in records if _EXCHANGED.search(record[1])]
    others = [record for record in records if not _EXCHANGED.search(record[1])]
    reductions = [span for span, label in others if _REDUCTION.search(label)]
    return StepShares(
        input=covered(span for span, label in others if _INPUT.search(label)) / duration,
        reductions=covered([*reductions, *_exchange_spans(exchanged)]) / duration,
    )


def _own_records(step_stats: Any) -> list[Record]:
    """Lists what ran on this worker: only its own clock is known.

    It has the most to do in its own step; the others only give it their values.
    """
    by_task: dict[str, list[Record]] = {}
    for device in step_stats.dev_stats:
        task = _TASK.match(device.device)
        records = by_task.setdefault(task[0] if task else "", [])
        records += [(_span(node), node.timeline_label) for node in device.node_stats]
    elsewhere = by_task.pop("", [])  # A GPU's own record names no task.
    return elsewhere + max(by_task.values(), key=len, default=[])


def _exchange_spans(records: Iterable[Record]) -> list[tuple[int, int]]:
    """Returns one span for each exchange: from this worker's own offer to the result.

    A reduction's ops that wait for nothing, such as those that find a queue, run long before.
    """
    spans: dict[str, tuple[int, int]] = {}
    for (start, end), label in sorted(records):
        found = _EXCHANGED.search(label)
        assert found is not None
        scope, op_type = found.groups()
        if scope in spans:
            spans[scope] = spans[scope][0], max(spans[scope][1], end)
        elif op_type.startswith("QueueEnqueue"):
            spans[scope] = start, end
    return list(spans.values())


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
