"""Files of a profile: text, Chrome trace and picture."""

from __future__ import annotations

import importlib
import json
import os
from pathlib import Path
from typing import Any

from tfdist.estimator.loop.step_profile.records import Op
from tfdist.estimator.loop.step_profile.shares import SHARES, Profile, advice

# The lanes of a worker, top to bottom.
LANES = ("device", "host", "reductions")
# Okabe and Ito's palette, for colour-blind readers.
_COLOURS = {
    "forward": "#0072B2",
    "backward": "#E69F00",
    "update": "#009E73",
    "input": "#CC79A7",
    "reduction": "#56B4E9",
}
_IN_WORDS = {
    "waiting": "waiting for the slowest",
    "reductions": "reductions, not hidden",
    "input": "waiting for input",
    "other": "between ops",
    "hooks": "hooks and Python",
}


def write_profile(profile: Profile, directory: str | os.PathLike[str]) -> list[Path]:
    """Writes `profile.txt`, `trace.json` and `profile.png` into a folder.

    Existing files with these names are replaced. The picture needs matplotlib and is written last.

    Returns:
      The paths.

    Raises:
      ImportError: If matplotlib is not installed.
    """
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    text, trace, image = (folder / name for name in ("profile.txt", "trace.json", "profile.png"))
    text.write_text(text_of(profile), encoding="utf-8")
    trace.write_text(json.dumps(trace_of(profile)), encoding="utf-8")
    _draw(profile, image)
    return [text, trace, image]


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

    The format is described in "Trace Event Format", Google, 2016.
    """
    begin = _begin(profile)
    events: list[dict[str, Any]] = []
    for index, worker in enumerate(profile.workers):
        events.append(_name("process_name", index, 0, f"worker {index}"))
        events += [_name("thread_name", index, lane, name) for lane, name in enumerate(LANES)]
        for number, step in enumerate(worker.steps, start=profile.first_step):
            for op in step.ops:
                start, end = op.span
                events.append(
                    {
                        "ph": "X",
                        "name": op.name,
                        "cat": op.kind,
                        "pid": index,
                        "tid": LANES.index(lane_of(op)),
                        "ts": start - begin,
                        "dur": end - start,
                        "args": {"type": op.type, "step": number},
                    }
                )
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def lane_of(op: Op) -> str:
    """Returns the lane in which an op is shown."""
    if op.kind == "reduction":
        return "reductions"
    return "device" if op.kind in ("forward", "backward") else "host"


def _name(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}


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
    figure_module = importlib.import_module("matplotlib.figure")
    patches = importlib.import_module("matplotlib.patches")
    rows = len(profile.workers) * len(LANES)
    height = 1.6 + 0.32 * rows
    figure = figure_module.Figure(figsize=(12.0, height), facecolor="white")
    axes = figure.add_axes((0.13, 0.75 / height, 0.85, (height - 1.55) / height))
    begin = _begin(profile)
    for index, worker in enumerate(profile.workers):
        for lane, name in enumerate(LANES):
            row = index * len(LANES) + lane
            for kind, colour in _COLOURS.items():
                bars = [
                    ((op.span[0] - begin) / 1e3, (op.span[1] - op.span[0]) / 1e3)
                    for step in worker.steps
                    for op in step.ops
                    if op.kind == kind and lane_of(op) == name
                ]
                axes.broken_barh(bars, (row + 0.1, 0.8), facecolors=colour)
        if index:
            axes.axhline(index * len(LANES), color="#666666", linewidth=0.8)
    labels = [f"worker {index}  {lane}" for index in range(len(profile.workers)) for lane in LANES]
    axes.set_yticks([row + 0.5 for row in range(rows)], labels, fontsize=8)
    axes.set_ylim(rows, 0)
    axes.set_xlabel("ms", fontsize=8)
    axes.tick_params(axis="x", labelsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    handles = [patches.Patch(color=colour, label=kind) for kind, colour in _COLOURS.items()]
    figure.legend(handles=handles, loc="upper right", ncols=len(handles), fontsize=8, frameon=False)
    figure.text(0.02, 1 - 0.28 / height, _title(profile), fontsize=10, weight="bold")
    figure.text(0.02, 0.12 / height, advice(profile), fontsize=9)
    figure.savefig(path, format="png", dpi=130)
