"""Files of a timeline: text, picture and Chrome trace."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tfdist.pipeline.timeline.image import save_image
from tfdist.pipeline.timeline.step_times import DeviceTimes, TimedBox, Timeline
from tfdist.pipeline.timeline.text import text_of

# Blue and orange among the named colours of chrome://tracing. Perfetto chooses its own colours, one
# for each event name without its number.
_FORWARD_COLOUR, _BACKWARD_COLOUR = "rail_response", "bad"


def write_timeline(timeline: Timeline, directory: str | os.PathLike[str]) -> list[Path]:
    """Writes `timeline.txt`, `trace.json` and `timeline.png` into a folder.

    The folder is created if necessary, and existing files with these names are replaced. The
    picture is written last: without matplotlib the other files are still written.

    Returns:
      The three paths, in the order above.

    Raises:
      ImportError: If matplotlib is not installed; a message of one line.
        `tfdist.pipeline.timeline.image.check_can_draw` raises it earlier.
    """
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    text, trace, image = paths = [
        folder / name for name in ("timeline.txt", "trace.json", "timeline.png")
    ]
    text.write_text(text_of(timeline), encoding="utf-8")
    trace.write_text(json.dumps(trace_of(timeline)), encoding="utf-8")
    save_image(timeline, image)
    return paths


def trace_of(timeline: Timeline) -> dict[str, Any]:
    """Returns a timeline in the Trace Event Format, as an object to be stored as JSON.

    Each device is a process, each stage on it is a thread, and each box is a complete event. Its
    arguments are the stage, the micro-batch, the replica and the direction. Times are microseconds
    from the start of the step.

    The format is described in "Trace Event Format", Google, 2016.
    """
    events: list[dict[str, Any]] = []
    for process, device in enumerate(timeline.devices):
        events += _names(timeline, process, device)
        for thread, lane in enumerate(device.lanes):
            events += [
                _event(timeline, process, thread, timed)
                for timed in timeline.boxes_of(device.name, lane)
            ]
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"title": timeline.title},
    }


def _names(timeline: Timeline, process: int, device: DeviceTimes) -> list[dict[str, Any]]:
    events = [
        _metadata("process_name", process, 0, name=device.name),
        _metadata("process_sort_index", process, 0, sort_index=process),
    ]
    for thread, (replica, stage) in enumerate(device.lanes):
        name = f"stage {stage} ({timeline.stage_names[stage]})"
        if timeline.num_replicas > 1:
            name = f"replica {replica}, {name}"
        events.append(_metadata("thread_name", process, thread, name=name))
        events.append(_metadata("thread_sort_index", process, thread, sort_index=thread))
    return events


def _metadata(kind: str, process: int, thread: int, **args: Any) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": args}


def _event(timeline: Timeline, process: int, thread: int, timed: TimedBox) -> dict[str, Any]:
    direction = "backward" if timed.box.backward else "forward"
    return {
        "ph": "X",
        "name": f"{direction} {timed.box.micro_batch}",
        "cat": direction,
        "pid": process,
        "tid": thread,
        "ts": 1e6 * (timed.start_s - timeline.start_s),
        "dur": 1e6 * (timed.end_s - timed.start_s),
        "cname": _BACKWARD_COLOUR if timed.box.backward else _FORWARD_COLOUR,
        "args": {
            "stage": timed.box.stage,
            "blocks": timeline.stage_names[timed.box.stage],
            "micro_batch": timed.box.micro_batch,
            "replica": timed.replica,
            "direction": direction,
        },
    }
