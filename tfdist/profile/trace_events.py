"""Events of the Trace Event Format, which chrome://tracing and Perfetto show.

The format is described in "Trace Event Format", Google, 2016.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def process_names(process: int, name: str, threads: Sequence[str]) -> list[dict[str, Any]]:
    """Returns the events that name a process and its threads, and keep them in this order."""
    events = [
        _metadata("process_name", process, 0, name=name),
        _metadata("process_sort_index", process, 0, sort_index=process),
    ]
    for thread, thread_name in enumerate(threads):
        events.append(_metadata("thread_name", process, thread, name=thread_name))
        events.append(_metadata("thread_sort_index", process, thread, sort_index=thread))
    return events


def box(
    name: str, kind: str, place: tuple[int, int], start: float, end: float, **more: Any
) -> dict[str, Any]:
    """Returns a complete event: a box with a name, of a category.

    `place` is its process and thread, `start` and `end` are in microseconds; `more` are more keys
    of the event, such as "args".
    """
    process, thread = place
    span = {"ts": start, "dur": end - start}
    return {"ph": "X", "name": name, "cat": kind, "pid": process, "tid": thread, **span, **more}


def trace(events: Sequence[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """Returns a whole trace, to be stored as JSON."""
    return {"traceEvents": list(events), "displayTimeUnit": "ms", **more}


def _metadata(kind: str, process: int, thread: int, **args: Any) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": args}
