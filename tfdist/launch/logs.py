"""The commands `tfdist logs` and `tfdist status`: runs of the past and of the present."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tfdist.launch.errors import UsageError
from tfdist.launch.options.command_line import CommandLine
from tfdist.launch.options.declaration import Group, flag, option
from tfdist.launch.options.values import any_path, any_text
from tfdist.launch.run.run_logs import LOG, is_running, runs_in
from tfdist.process.text import did_you_mean, listed, shown

_POLL_S = 0.2
_TAIL_BYTES = 4096  # of a log, for its last line
_WIDTH = 60

_GROUP = Group("options")
_LOG_DIR = "the folder with the folders of all runs"


@dataclass(frozen=True, kw_only=True)
class LogsOptions:
    """The options of `tfdist logs`."""

    worker: str | None = option(
        any_text("N"),
        "only this worker, or evaluator, or start",
        shown_default="all workers",
        group=_GROUP,
    )
    follow: bool = flag("go on with what is written until the run ends", shown_default="")
    log_dir: Path = option(
        any_path("FOLDER"), _LOG_DIR, default=Path("tfdist-logs"), shown_default="tfdist-logs"
    )


LOGS = CommandLine(
    prog="tfdist logs",
    options=LogsOptions,
    usage="[RUN] [options]",
    description=(
        "Shows the logs of a run's workers. RUN is a folder of logs, or its name in\n"
        "tfdist-logs; without it, it is the newest."
    ),
    examples=(
        "examples:\n  tfdist logs\n  tfdist logs --worker 1 --follow\n"
        "  tfdist logs 2026-11-21_18-41-08"
    ),
    takes_command=False,
)


@dataclass(frozen=True, kw_only=True)
class StatusOptions:
    """The options of `tfdist status`."""

    all: bool = flag("also list runs that have ended", shown_default="", group=_GROUP)
    log_dir: Path = option(
        any_path("FOLDER"), _LOG_DIR, default=Path("tfdist-logs"), shown_default="tfdist-logs"
    )


STATUS = CommandLine(
    prog="tfdist status",
    options=StatusOptions,
    description="Lists the runs with logs in this folder, with worker 0's last line.",
    takes_command=False,
)


def main(words: Sequence[str]) -> int:
    """Prints the logs, and returns the exit code 0; a UsageError without such a run or worker."""
    name = words[0] if words and not words[0].startswith("-") else None
    options = LogsOptions(**LOGS.parse(words[1:] if name is not None else words))
    run = find_run(name, options.log_dir)
    try:
        _show(run, find_logs(run, options.worker), follows=options.follow)
    except OSError as error:
        if error.filename is None:  # It is of stdout.
            raise
        raise UsageError(
            f"{shown(str(error.filename))} cannot be read: {error.strerror}. Name another run."
        ) from None
    return 0


def _show(run: Path, paths: Sequence[Path], *, follows: bool) -> None:
    has_tags = len(paths) > 1
    if follows:
        for path, line in follow(run, paths):
            sys.stdout.write(f"[{_tag(path)}] {line}" if has_tags else line)
            sys.stdout.flush()
        return
    for path in paths:
        if has_tags:
            print(f"==> {path} <==")
        sys.stdout.write(path.read_text(encoding="utf-8", errors="replace"))


def find_run(name: str | None, log_dir: Path) -> Path:
    """Returns a run's folder: the newest, this one, or one of all; a UsageError without one."""
    runs = runs_in(log_dir)
    if name is None:
        if not runs:
            raise UsageError(
                f"there are no logs of a run in {shown(str(log_dir))}. Change to the folder in "
                "which the run was started, or name the folder of its logs."
            )
        return runs[-1]
    found = next((path for path in (log_dir / name, Path(name)) if path.is_dir()), None)
    if found is None:
        raise UsageError(
            f"there is no run {shown(name)} in {shown(str(log_dir))}."
            f"{did_you_mean(name, [run.name for run in runs])} tfdist status --all lists them."
        )
    return found


def find_logs(run: Path, worker: str | None) -> list[Path]:
    """Returns the logs of workers in order, then the evaluator's, or one; a UsageError without."""
    found = {_tag(path): path for path in run.iterdir() if LOG.fullmatch(path.name)}
    names = [*sorted(filter(str.isdecimal, found), key=int), "evaluator", "start"]
    every = {name: found[name] for name in names if name in found}
    of_workers = [path for name, path in every.items() if name != "start"]
    chosen = [every[worker]] if worker in every else []
    if worker is None:
        chosen = of_workers or list(every.values())
    if not chosen:
        of_whom = "" if worker is None else f" of {shown(worker)}"
        raise UsageError(f"the run {run} has no log{of_whom}. It has: {listed(every)}.")
    return chosen


def follow(run: Path, paths: Sequence[Path]) -> Iterator[tuple[Path, str]]:
    """Yields each whole line of the logs with its path, until the run has ended."""
    places = dict.fromkeys(paths, 0)
    while True:
        goes_on = is_running(run)  # Before the last look.
        for path in paths:
            with path.open("rb") as file:
                file.seek(places[path])
                for line in file:
                    if line.endswith(b"\n") or not goes_on:
                        places[path] += len(line)
                        yield path, line.decode("utf-8", errors="replace")
        if not goes_on:
            return
        time.sleep(_POLL_S)


def _tag(path: Path) -> str:
    return path.stem.removeprefix("worker-")


def status(words: Sequence[str]) -> int:
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
        changed_s = [log.stat().st_mtime for log in run.glob("*.log") if log.exists()]
        age_s = max(0.0, now_s - max(changed_s, default=now_s))
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
