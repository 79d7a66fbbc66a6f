"""Files of a timeline: text, picture and Chrome trace."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tfdist.pipeline.timeline.image import save_image
from tfdist.pipeline.timeline.step_times import DeviceTimes, TimedBox, Timeline
from tfdist.pipeline.timeline.text import text_of
from tfdist.profile import trace_events
from tfdist.profile.files import write_files

# Blue and orange among the named colours of chrome://tracing. Perfetto chooses its own colours, one
# for each event name without its number.
_FORWARD_COLOUR, _BACKWARD_COLOUR = "rail_response", "bad"


def write_timeline(timeline: Timeline, directory: str | os.PathLike[str]) -> list[Path]:
    """Writes `timeline.txt`, `trace.json` and `timeline.png`; see `write_files`."""
    text, trace = text_of(timeline), trace_of(timeline)
    return write_files(directory, "timeline", text, trace, lambda path: save_image(timeline, path))


def trace_of(timeline: Timeline) -> dict[str, Any]:
    """Returns a timeline in the Trace Event Format, as an object to be stored as JSON.

    Each device is a process, each stage on it is a thread, and each box is a complete event. Its
    arguments are the stage, the micro-batch, the replica and the direction. Times are microseconds
    from the start of the step.
    """
    events: list[dict[str, Any]] = []
    for process, device in enumerate(timeline.devices):
        events += trace_events.process_names(process, device.name, _lane_names(timeline, device))
        for thread, lane in enumerate(device.lanes):
            events += [
                _event(timeline, (process, thread), timed)
                for timed in timeline.boxes_of(device.name, lane)
            ]
    return trace_events.trace(events, otherData={"title": timeline.title})


def _lane_names(timeline: Timeline, device: DeviceTimes) -> list[str]:
    names = []
    for replica, stage in device.lanes:
        name = f"stage {stage} ({timeline.stage_names[stage]})"
        names.append(f"replica {replica}, {name}" if timeline.num_replicas > 1 else name)
    return names


def _event(timeline: Timeline, place: tuple[int, int], timed: TimedBox) -> dict[str, Any]:
    direction = "backward" if timed.box.backward else "forward"
    return trace_events.box(
        f"{direction} {timed.box.micro_batch}",
        direction,
        place,
        1e6 * (timed.start_s - timeline.start_s),
        1e6 * (timed.end_s - timeline.start_s),
        cname=_BACKWARD_COLOUR if timed.box.backward else _FORWARD_COLOUR,
        args={
            "stage": timed.box.stage,
            "blocks": timeline.stage_names[timed.box.stage],
            "micro_batch": timed.box.micro_batch,
            "replica": timed.replica,
            "direction": direction,
        },
    )
