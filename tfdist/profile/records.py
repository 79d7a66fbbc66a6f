"""The records of a traced session call: which op ran when, and what kind of work it was.

TensorFlow's label of a record reads "name = Type(inputs)", sometimes after the memory in brackets.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

Span: TypeAlias = tuple[float, float]  # start and end
Kind: TypeAlias = Literal["input", "forward", "backward", "update", "reduction"]

_LABEL = re.compile(r"(?:^|\s)(\S+) = (\w+)\(")
_INPUT = re.compile(r"Iterator\w*GetNext\w*|QueueDequeue\w*")
_REDUCTION = re.compile(r"(Collective|Horovod)\w+")
_BACKWARD = re.compile(r"(?:^|/)(gradients(_\d+)?|gradient_tape|backward\w*)/")
# Optimizers of TensorFlow 1 update each variable in such a name scope.
_UPDATE = re.compile(r"(?:^|/)update_[^/]+/")
_APPLIES = re.compile(r"Resource(Sparse)?Apply\w+")
# The name scope of the ops by which `tfdist.strategies.grpc.direct_exchange` replaces a
# collective.
_EXCHANGED = re.compile(r"^(\S+_exchanged)/")
_TASK = re.compile(r"^/job:[^/]+/replica:\d+/task:\d+")
_HOST = re.compile(r"/device:CPU:0$")


@dataclass(frozen=True, kw_only=True)
class Record:
    """One run of an op in a traced call.

    Attributes:
      name: The op's name.
      type: Its type, such as "MatMul".
      span: Start and end, in microseconds of the worker's clock.
      is_on_host: Whether it ran on the first CPU device.
    """

    name: str
    type: str
    span: Span
    is_on_host: bool


@dataclass(frozen=True, kw_only=True)
class Op(Record):
    """One run of an op, or a whole reduction, with the kind of its work."""

    kind: Kind


def ops_of(step_stats: Any) -> list[Op]:
    """Returns the ops of this worker in a traced call, by rising start.

    The ops by which workers exchange one tensor are one `Op` of kind "reduction". An op that no
    rule knows belongs to the update if it runs on the host after the first reduction of the
    backward pass, or the first update, has begun; else to the forward pass. `step_stats` are those
    of a RunMetadata.
    """
    records = _own_records(step_stats)
    reductions = _exchanges(record for record in records if _EXCHANGED.match(record.name))
    others = [record for record in records if not _EXCHANGED.match(record.name)]
    sure = [(record, _sure_kind(record)) for record in others]
    starts: list[tuple[float, Kind]] = [(op.span[0], op.kind) for op in reductions]
    starts += [(record.span[0], kind) for record, kind in sure if kind is not None]
    backward = min((start for start, kind in starts if kind == "backward"), default=0)
    after_backward = [
        start for start, kind in starts if kind in ("reduction", "update") and start >= backward
    ]
    update = min(after_backward, default=None)

    def kind_of(record: Record) -> Kind:
        is_update = update is not None and record.is_on_host and record.span[0] >= update
        return "update" if is_update else "forward"

    ops = [Op(**vars(record), kind=kind or kind_of(record)) for record, kind in sure]
    return sorted([*ops, *reductions], key=lambda op: op.span)


def _sure_kind(record: Record) -> Kind | None:
    """Returns the kind of work that name and type tell; None if they tell nothing."""
    if _INPUT.fullmatch(record.type):
        return "input"
    if _REDUCTION.fullmatch(record.type):
        return "reduction"
    if _APPLIES.fullmatch(record.type) or _UPDATE.search(record.name):
        return "update"
    return "backward" if _BACKWARD.search(record.name) else None


def _own_records(step_stats: Any) -> list[Record]:
    """Returns the records of this worker; the clocks of the others differ.

    It is the task with the most records: in this step the others only send it values.
    """
    by_task: dict[str, list[Record]] = {}
    for device in step_stats.dev_stats:
        task = _TASK.match(device.device)
        is_on_host = _HOST.search(device.device) is not None
        records = by_task.setdefault(task[0] if task else "", [])
        for node in device.node_stats:
            if node.node_name == "RecvTensor":  # A message; the op that awaits it counts.
                continue
            label = _LABEL.search(node.timeline_label)
            name, type_ = label.groups() if label else (node.node_name, "")
            start = node.all_start_micros
            span = start, start + node.all_end_rel_micros
            records.append(Record(name=name, type=type_, span=span, is_on_host=is_on_host))
    elsewhere = by_task.pop("", [])  # A GPU's own record names no task.
    return elsewhere + max(by_task.values(), key=len, default=[])


def _exchanges(records: Iterable[Record]) -> list[Op]:
    """Returns one op for each exchange: from this worker's own offer to the result.

    The worker that adds up a sum for all offers nothing: its part begins when it has all tensors.
    Ops of a reduction without inputs to wait for, such as those that look up a queue, run long
    before.
    """
    spans: dict[str, Span] = {}
    for record in sorted(records, key=lambda record: record.span):
        scope = _EXCHANGED.match(record.name)
        assert scope is not None
        name, (start, end) = scope[1], record.span
        if name in spans:
            spans[name] = spans[name][0], max(spans[name][1], end)
        elif record.type.startswith(("QueueEnqueue", "AddN")):
            spans[name] = start, end
    return [
        Op(name=name, type="exchange", span=span, is_on_host=True, kind="reduction")
        for name, span in spans.items()
    ]


def union(spans: Iterable[Span]) -> list[Span]:
    """Joins spans that touch or overlap, and returns the result by rising start."""
    joined: list[Span] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    return joined


def length(spans: Iterable[Span]) -> float:
    """Returns the total length of spans that do not overlap."""
    return sum(end - start for start, end in spans)
