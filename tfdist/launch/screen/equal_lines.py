"""Lines that several workers print, so that each is shown once.

    worker 0 prints    A    B         D
    worker 1 prints         A    B         E
    shown                   A    B         D, E (a second later)
    as the lines of         0-1  0-1       0  1

A line waits until all workers have printed it, but no longer than a second. The lines of one worker
stay in their order: with a line, all that wait before it are shown. Lines that differ only in the
duration of a step count as equal, and the first worker's is shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from tfdist.launch.screen.terminal import Stream

# Of LoggingTensorHook and StepCounterHook: the duration of a step.
_DURATION = re.compile(r"\(\d+\.\d+ sec\)$|(?<=global_step/sec: )[\d.]+$")
_LONGEST_WAIT_S = 1.0
_MOST_WAITING = 10_000  # lines


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line of output, the workers that have printed it, and when the first of them did."""

    workers: set[int]
    stream: Stream
    text: str
    since_s: float

    @cached_property
    def key(self) -> tuple[Stream, str]:
        """The stream, and the text without the duration of a step."""
        return self.stream, _DURATION.sub("", self.text)


class EqualLines:
    """Joins the lines that these workers print. Lines of others do not wait."""

    def __init__(self, workers: Iterable[int]) -> None:
        self._running = set(workers)
        # The number of the line after each worker's last one, counted from the first line of all.
        self._next = dict.fromkeys(self._running, 0)
        self._waiting: list[Line] = []
        self._num_released = 0

    def add(self, line: Line) -> list[Line]:
        """Adds a line that one worker has printed; returns the lines that are to be shown now."""
        (worker,) = line.workers
        if worker not in self._next:
            return [line]
        place = max(0, self._next[worker] - self._num_released)
        while place < len(self._waiting):
            found = self._waiting[place]
            if found.key == line.key:
                found.workers.add(worker)
                break
            place += 1
        else:
            self._waiting.append(line)
        self._next[worker] = self._num_released + place + 1
        is_complete = self._waiting[place].workers >= self._running
        return self._release(place + 1 if is_complete else len(self._waiting) - _MOST_WAITING)

    def overdue(self, now_s: float) -> list[Line]:
        """Returns the lines that have waited for too long."""
        waiting, due_s = self._waiting, now_s - _LONGEST_WAIT_S
        early = (place for place, one in enumerate(waiting) if one.since_s > due_s)
        return self._release(next(early, len(waiting)))

    def leave(self, worker: int) -> list[Line]:
        """Waits for this worker no longer; returns the lines that are to be shown now."""
        self._running.discard(worker)
        complete = [n for n, one in enumerate(self._waiting, 1) if one.workers >= self._running]
        return self._release(complete[-1] if complete else 0)

    def _release(self, number: int) -> list[Line]:
        released = self._waiting[: max(0, number)]
        del self._waiting[: len(released)]
        self._num_released += len(released)
        return released
