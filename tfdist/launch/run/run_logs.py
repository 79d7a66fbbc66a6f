"""The log files of a run: one a worker, whole, whatever the screen shows."""

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
    """Returns a folder below the current one, named after the time."""
    return Path("tfdist-logs", f"{now:%Y-%m-%d_%H-%M-%S}")


def make_log_dir(folder: Path, *, must_be_new: bool) -> Path:
    """Makes the folder for the logs, and returns it.

    Args:
      folder: Where the user wants it, or the default.
      must_be_new: Whether another run's folder must not be used; the name then gets a number.

    Raises:
      UsageError: If it cannot be made.
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
    """The open logs.

    Args:
      plan: Whose logs they are.
      say: Gets a line for the user where a log cannot be written; the run goes on without.
    """

    def __init__(self, plan: Plan, say: Callable[[str], None]) -> None:
        self._say = say
        self._files: dict[int, TextIO] = {}
        for worker in plan.workers:
            try:
                # Of an earlier start of the same run, it is continued.
                self._files[worker.index] = worker.log_path.open("a", encoding="utf-8")
            except OSError as error:
                say(f"the log {worker.log_path} cannot be written: {error.strerror}")

    def write(self, worker: int, text: str) -> None:
        """Adds what a worker has printed; it can be read at once."""
        file = self._files.get(worker)
        if file is None:
            return
        try:
            file.write(text)
            file.flush()
        except OSError as error:
            self._say(f"the log {file.name} ends here: {error.strerror}")
            del self._files[worker]
            with contextlib.suppress(OSError):  # again: what was not written is still in its buffer
                file.close()

    def close(self) -> None:
        """Closes the files."""
        while self._files:
            self._files.popitem()[1].close()
