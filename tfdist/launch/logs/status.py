"""The command `tfdist status`: lists the runs that were started in a folder."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tfdist.launch.options.command_line import CommandLine
from tfdist.launch.options.declaration import Group, flag, option
from tfdist.launch.options.values import any_path
from tfdist.launch.run.run_logs import is_running, runs_in

_TAIL_BYTES = 4096
_WIDTH = 60

_GROUP = Group("options")


@dataclass(frozen=True, kw_only=True)
class StatusOptions:
    """The options of `tfdist status`."""

    all: bool = flag("also list runs that have ended", shown_default="", group=_GROUP)
    log_dir: Path = option(
        any_path("FOLDER"),
        "the folder with the folders of all runs",
        default=Path("tfdist-logs"),
        shown_default="tfdist-logs",
    )


STATUS = CommandLine(
    prog="tfdist status",
    options=StatusOptions,
    description="Lists the runs whose logs are in this folder, with worker 0's last line.",
    takes_command=False,
)


def main(words: Sequence[str]) -> int:
    """Prints a line for each run, and returns the exit code 0."""
    options = StatusOptions(**STATUS.parse(words))
    runs = [run for run in runs_in(options.log_dir) if options.all or is_running(run)]
    if not runs:
        kind = "" if options.all else " running"
        print(f"There is no{kind} run in {options.log_dir}.")
        return 0
    for line in table(runs, time.time()):
        print(line)
    return 0


def table(runs: Sequence[Path], now_s: float) -> list[str]:
    """Returns the lines of a table of runs."""
    rows = [("RUN", "STATE", "WORKERS", "LAST OUTPUT", "")]
    for run in runs:
        logs = sorted(run.glob("*.log"), key=lambda path: path.stat().st_mtime)
        age_s = max(0.0, now_s - logs[-1].stat().st_mtime) if logs else 0.0
        workers = str(len(list(run.glob("worker-*.log"))))
        state = "running" if is_running(run) else "ended"
        rows.append((run.name, state, workers, _age(age_s), last_line(run / "worker-0.log")))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return [
        "  ".join(
            f"{cell:<{width}}" for cell, width in zip(row, [*widths, 0], strict=True)
        ).rstrip()
        for row in rows
    ]


def last_line(path: Path) -> str:
    """Returns the last line of a log that is not empty, shortened."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            lines = file.read().decode("utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    line = next((line.strip() for line in reversed(lines) if line.strip()), "")
    line = "".join(letter for letter in line if letter.isprintable())
    return line if len(line) <= _WIDTH else f"{line[: _WIDTH - 3]}..."


def _age(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s ago"
    if seconds < 2 * 3600:
        return f"{seconds / 60:.0f} min ago"
    return f"{seconds / 3600:.0f} h ago"
