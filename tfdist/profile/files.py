"""Files of a profile: text, Chrome trace and picture."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tfdist.profile import picture, trace_events
from tfdist.profile.records import Op
from tfdist.profile.shares import SHARES, Profile, advice

# The lanes of a worker, top to bottom.
LANES = ("device", "host", "reductions")
_KINDS = ("forward", "backward", "update", "input", "reduction")
_IN_WORDS = {
    "waiting": "waiting for the slowest",
    "reductions": "reductions, not hidden",
    "input": "waiting for input",
    "other": "between ops",
    "hooks": "hooks and Python",
}


def write_profile(profile: Profile, directory: str | os.PathLike[str]) -> list[Path]:
    """Writes `profile.txt`, `trace.json` and `profile.png`; see `write_files`."""
    text, trace = text_of(profile), trace_of(profile)
    return write_files(directory, "profile", text, trace, lambda path: _draw(profile, path))


def write_files(
    directory: str | os.PathLike[str],
    name: str,
    text: str,
    trace: dict[str, Any],
    draw: Callable[[Path], None],
) -> list[Path]:
    """Writes `NAME.txt`, `trace.json` and `NAME.png` into a folder; returns their paths.

    The folder is created if necessary, and existing files with these names are replaced. The
    picture is written last: without matplotlib the other files are still written.

    Raises:
      ImportError: If matplotlib is not installed; a message of one line. `picture.check_can_draw`
        raises it earlier.
    """
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / file for file in (f"{name}.txt", "trace.json", f"{name}.png")]
    paths[0].write_text(text, encoding="utf-8")
    paths[1].write_text(json.dumps(trace), encoding="utf-8")
    draw(paths[2])
    return paths


def text_of(profile: Profile) -> str:
    """Returns a table of the shares, the memory and the longest ops, and the advice."""
    workers = range(len(profile.workers))
    rows = [("share of a step", *(f"worker {index}" for index in workers))]
    for name in SHARES:
        cells = (f"{shares[name]:.1%}" for shares in profile.shares)
        rows.append((_IN_WORDS.get(name, name), *cells))
    rows.append(("reductions, hidden", *(f"{share:.1%}" for share in profile.hidden)))
    for place in sorted({place for worker in profile.workers for place in worker.memory}):
        sizes = (worker.memory.get(place) for worker in profile.workers)
        cells = ("" if size is None else f"{size / 2**20:,.0f} MiB" for size in sizes)
        rows.append((f"peak memory, {place}", *cells))
    lines = [_title(profile), ""]
    lines += [f"{first:26}" + "".join(f"{cell:>13}" for cell in cells) for first, *cells in rows]
    lines += ["", f"longest ops of worker {profile.slowest}:"]
    lines += [
        f"  {1e3 * seconds:8.2f} ms  {name} ({type_})"
        for name, type_, seconds in profile.longest_ops(profile.slowest)
    ]
    return "\n".join([*lines, "", advice(profile), ""])


def trace_of(profile: Profile) -> dict[str, Any]:
    """Returns a profile in the Trace Event Format, as an object to be stored as JSON.

    Each worker is a process with the threads of LANES. Times are microseconds from the first op.
    """
    begin = _begin(profile)
    events: list[dict[str, Any]] = []
    for index, worker in enumerate(profile.workers):
        events += trace_events.process_names(index, f"worker {index}", LANES)
        for number, step in enumerate(worker.steps, start=profile.first_step):
            for op in step.ops:
                start, end = (time - begin for time in op.span)
                place, args = (index, LANES.index(lane_of(op))), {"type": op.type, "step": number}
                events.append(trace_events.box(op.name, op.kind, place, start, end, args=args))
    return trace_events.trace(events)


def lane_of(op: Op) -> str:
    """Returns the lane in which an op is shown."""
    if op.kind == "reduction":
        return "reductions"
    return "device" if op.kind in ("forward", "backward") else "host"


def _title(profile: Profile) -> str:
    first, last = profile.first_step, profile.first_step + profile.num_steps - 1
    steps = f"step {first}" if first == last else f"steps {first} to {last}"
    number = len(profile.workers)
    workers = "1 worker" if number == 1 else f"{number} workers"
    return f"{workers}, {steps}, {1e3 * profile.step_s:.1f} ms a step (while traced)"


def _begin(profile: Profile) -> float:
    return min(worker.steps[0].span[0] for worker in profile.workers)


def _draw(profile: Profile, path: Path) -> None:
    """Draws the lanes of all workers to scale, with the advice below."""
    rows = len(profile.workers) * len(LANES)
    height = 1.6 + 0.32 * rows
    figure = picture.new_figure(12.0, height)
    colours = {kind: picture.COLOURS[kind] for kind in _KINDS}
    axes = figure.add_axes((0.13, 0.75 / height, 0.85, (height - 1.55) / height))
    begin = _begin(profile)
    for index, worker in enumerate(profile.workers):
        for lane, name in enumerate(LANES):
            row = index * len(LANES) + lane
            for kind, colour in colours.items():
                bars = [
                    ((op.span[0] - begin) / 1e3, (op.span[1] - op.span[0]) / 1e3)
                    for step in worker.steps
                    for op in step.ops
                    if op.kind == kind and lane_of(op) == name
                ]
                axes.broken_barh(bars, (row + 0.1, 0.8), facecolors=colour)
        if index:
            axes.axhline(index * len(LANES), color=picture.GREY, linewidth=0.8)
    labels = [f"worker {index}  {lane}" for index in range(len(profile.workers)) for lane in LANES]
    axes.set_yticks([row + 0.5 for row in range(rows)], labels, fontsize=8)
    axes.set_ylim(rows, 0)
    axes.set_xlabel("ms", fontsize=8)
    axes.tick_params(axis="x", labelsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    handles = picture.legend_patches(colours)
    figure.legend(handles=handles, loc="upper right", ncols=len(handles), fontsize=8, frameon=False)
    figure.text(0.02, 1 - 0.28 / height, _title(profile), fontsize=10, weight="bold")
    figure.text(0.02, 0.12 / height, advice(profile), fontsize=9)
    picture.save(figure, path)
