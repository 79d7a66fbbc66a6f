"""The log files of a run: one per worker, with its whole output."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TextIO

from tfdist.cluster.tasks import shown
from tfdist.launch.errors import UsageError
from tfdist.launch.plan import Plan


def default_log_dir(now: datetime) -> Path:
    """Returns a path below the current folder, named after the time; makes no folder."""
    return Path("tfdist-logs", f"{now:%Y-%m-%d_%H-%M-%S}")


def make_log_dir(folder: Path, *, must_be_new: bool) -> Path:
    """Makes the folder for the logs and returns its path.

    Args:
      folder: The user's choice, or the default.
      must_be_new: If True, an existing folder is not used: the name gets a number from 2 on.

    Raises:
      UsageError: If the folder cannot be made.
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


class RunLogs:
    """The open log files of a run.

    Args:
      plan: The plan, with the path of each worker's log.
      say: Called with a line for the user if a log cannot be written. The run continues without
        that log.
    """

    def __init__(self, plan: Plan, say: Callable[[str], None]) -> None:
        self._say = say
        self._files: dict[int, TextIO] = {}
        for worker in plan.workers:
            try:
                # Appends, because an earlier start of the same run may have written to it.
                self._files[worker.index] = worker.log_path.open("a", encoding="utf-8")
            except OSError as error:
                say(f"the log {worker.log_path} cannot be written: {error.strerror}")

    def write(self, worker: int, text: str) -> None:
        """Appends a worker's output to its log and flushes it."""
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
        """Closes all log files."""
        while self._files:
            self._files.popitem()[1].close()
