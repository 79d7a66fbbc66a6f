"""Tracebacks that are held back, because the failure box may show them better.

worker prints       shown
a line              at once
Traceback ...       not yet, and nothing that follows it on stderr
  it ends           in the box, or without the frames of packages
  it goes on        as it was printed: with its next log line, or 10 s later
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tfdist.launch.screen.error_excerpt import error_excerpt, error_text

_TRACEBACK = "Traceback (most recent call last):"
# A program that goes on after an exception prints such lines.
_LOG = re.compile(r"(?:DEBUG|INFO|WARNING|ERROR)\b|tfdist: |\d\d\d\d-\d\d-\d\d ")
_LONGEST_WAIT_S = 10.0
_MOST_LINES = 10_000


class HeldErrors:
    """The tracebacks of all workers that have not been shown yet."""

    def __init__(self) -> None:
        self._held: dict[int, list[str]] = {}
        self._since_s: dict[int, float] = {}
        self._ending: str | None = None

    def add(self, worker: int, line: str, now_s: float) -> list[str]:
        """Adds a line of a worker's stderr; returns the lines that are to be shown now."""
        held = self._held.get(worker)
        # An error of syntax in the program itself has no first line.
        if held is None and line != _TRACEBACK and not line.startswith('  File "'):
            return [line]
        is_next = held is not None and line == _TRACEBACK and held[-1] != ""
        if held is None or is_next:  # An error that follows from the one before has an empty line.
            before = self.take(worker)
            self._held[worker], self._since_s[worker] = [line], now_s
            return before
        if _LOG.match(line) or len(held) >= _MOST_LINES:
            return [*self.take(worker), line]
        held.append(line)
        return []

    def overdue(self, now_s: float) -> dict[int, list[str]]:
        """Returns the lines of the workers that go on, by worker."""
        due_s = now_s - _LONGEST_WAIT_S
        late = [worker for worker, since_s in self._since_s.items() if since_s <= due_s]
        return {worker: self.take(worker) for worker in late}

    def end(self, shown: str) -> None:
        """Notes that the run fails. `shown` is the error that the box shows, "" if it shows none.

        The lines of all workers are excerpts from now on, and none for this error.
        """
        self._ending = shown

    def take(self, worker: int) -> list[str]:
        """Returns the lines of one worker, and holds them no longer."""
        lines = self._held.pop(worker, [])
        self._since_s.pop(worker, None)
        return lines if self._ending is None else _ended(lines, self._ending)


def _ended(lines: Sequence[str], shown: str) -> list[str]:
    error = error_text(lines)
    if not error:
        return list(lines)
    return [] if error == shown else list(error_excerpt(lines))
