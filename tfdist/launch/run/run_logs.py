"""The log files of a run: one per worker, with its whole output."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import IO, TextIO

from tfdist.launch.errors import UsageError
from tfdist.launch.screen.failure_box import LONGEST_TAIL, last_lines
from tfdist.launch.workers.channel import AS_BYTES
from tfdist.launch.workers.plan import Plan
from tfdist.process.text import shown

_FOLDER = "tfdist-logs"
# The names of the folders that `make_log_dir` makes by default, and of the files in them.
_RUN = re.compile(r"(\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d)(?:\.(\d+))?")
LOG = re.compile(r"start\.log|worker-\d+\.log|evaluator\.log")
_LOCKED = "start.log"
_LOCK_TRIES, _LOCK_PAUSE_S = 100, 0.01


def default_log_dir(now: datetime) -> Path:
    """Returns a path below the current folder, named after the time; makes no folder."""
    return Path(_FOLDER, f"{now:%Y-%m-%d_%H-%M-%S}")


def make_log_dir(folder: Path, *, must_be_new: bool) -> Path:
    """Makes the folder for the logs and returns its path; a UsageError if it cannot be made.

    With `must_be_new` an existing folder is not used: the name gets a number from 2 on.
    """
    try:
        for number in range(2, 1000):
            try:
                folder.mkdir(parents=True, exist_ok=not must_be_new)
                return folder
            except FileExistsError:
                if not must_be_new:
                    raise
                folder = folder.with_name(f"{folder.name.partition('.')[0]}.{number}")
    except OSError as error:
        raise UsageError(
            f"the folder for the logs, {shown(str(folder))}, cannot be made: {error.strerror}. "
            "Name one that can with --log-dir."
        ) from None
    raise UsageError(f"{shown(str(folder))} is one of a thousand. Name a folder with --log-dir.")


@contextlib.contextmanager
def kept_from_pruning(folder: Path) -> Iterator[None]:
    """Keeps other launchers from deleting this folder in the `with` block, by a lock on a file."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # a file system without locks
            file = stack.enter_context((folder / _LOCKED).open("ab"))
            _lock(file)
        yield


def _lock(file: IO[bytes]) -> None:
    for _ in range(_LOCK_TRIES):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:  # `is_running` has it for a moment.
            time.sleep(_LOCK_PAUSE_S)


def runs_in(folder: Path = Path(_FOLDER)) -> list[Path]:
    """Returns the folders of logs in a folder that have a default name, the oldest first."""
    try:
        paths = [path for path in folder.iterdir() if not path.is_symlink()]
    except OSError:
        return []
    runs = {path: _RUN.fullmatch(path.name) for path in paths}
    in_order = sorted((name[1], int(name[2] or 1), path) for path, name in runs.items() if name)
    return [path for *_, path in in_order]


def is_running(run: Path) -> bool:
    """Returns whether the run whose logs a folder has is going on: its launcher holds a lock."""
    try:
        with (run / _LOCKED).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def prune_logs(num_kept: int, folder: Path = Path(_FOLDER)) -> int:
    """Deletes the oldest folders of logs but `num_kept`; returns their number.

    Only those that have a default name, nothing but logs in them, and a run that is over.
    """
    runs = runs_in(folder)
    return sum(_delete(path) for path in runs[: max(0, len(runs) - num_kept)])


def _delete(run: Path) -> bool:
    """Deletes a folder of logs if it has nothing else in it, and its run is over."""
    with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
        files = list(run.iterdir())
        if not all(LOG.fullmatch(file.name) and file.is_file() for file in files):
            return False
        # Without this file, the run has just begun.
        locked = stack.enter_context((run / _LOCKED).open("r+b"))
        fcntl.flock(locked, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for file in files:
            file.unlink()
        run.rmdir()
        return True
    return False


def as_text(output: str) -> str:
    """Returns a worker's output for people: U+FFFD in place of bytes that are not UTF-8."""
    return output.encode(errors=AS_BYTES).decode(errors="replace")


class RunLogs:
    """The open log files of a run, which goes on without one that cannot be written.

    `say` is called with a line for the user then.
    """

    def __init__(self, plan: Plan, say: Callable[[str], None]) -> None:
        self._say = say
        self._files: dict[int, TextIO] = {}
        self._recent: dict[int, str] = {}
        for worker in plan.workers:
            self._open(worker.index, worker.log_path)

    def _open(self, worker: int, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Appends, because an earlier start of the same run may have written to it.
            self._files[worker] = path.open("a", encoding="utf-8", errors=AS_BYTES)
        except OSError as error:
            self._say(f"the log {path} cannot be written: {error.strerror}")

    def tail(self, worker: int) -> tuple[str, ...]:
        """Returns the last lines that a worker printed in this start, up to 65,536 characters.

        They do not come from the log, which earlier starts wrote to and a full disk may lack.
        """
        return last_lines(as_text(self._recent.get(worker, "")))

    def restore(self) -> None:
        """Makes the logs that were removed again, with their folder; they have what comes then."""
        removed = {
            worker: Path(file.name)
            for worker, file in self._files.items()
            if not os.path.exists(file.name)
        }
        if removed:
            names = ", ".join(str(path) for path in removed.values())
            self._say(f"logs were removed during the run and are created again: {names}")
        for worker, path in removed.items():
            self._files.pop(worker).close()
            self._open(worker, path)

    def write(self, worker: int, text: str) -> None:
        self._recent[worker] = (self._recent.get(worker, "") + text)[-LONGEST_TAIL:]
        file = self._files.get(worker)
        if file is None:
            return
        try:
            file.write(text)
            file.flush()
        except OSError as error:
            self._say(f"the log {file.name} ends here: {error.strerror}")
            del self._files[worker]
            with contextlib.suppress(OSError):  # the unwritten buffer fails again
                file.close()

    def close(self) -> None:
        while self._files:
            self._files.popitem()[1].close()
