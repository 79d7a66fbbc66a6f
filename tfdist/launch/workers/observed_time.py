"""A clock that stands still while this process is suspended.

A limit on the silence of another process, or on its time to end, must count only the time in which
this process could have heard of it:

    clock of the machine   0 1 2 3 4 5 6 ........ 36 37 38
                                   ^ SIGSTOP      ^ SIGCONT, or the lid is opened
    observed time          0 1 2 3 4 5              6  7
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from tfdist.launch.workers.channel import SILENCE_S

# A running process reads its clock twice a second. A longer pause counts as this long.
_LONGEST_S = SILENCE_S / 10


# The seconds since the machine was started, with those for which it was asleep.
_machine_time_s = partial(time.clock_gettime, time.CLOCK_BOOTTIME)


class ObservedClock:
    """Seconds for which this process has run; must be read at least every `_LONGEST_S` seconds.

    Attributes:
      last_absence_s: The length of the last suspension, in seconds; 0.0 before the first.
      returned_s: The time on this clock at which it ended.
    """

    def __init__(self, read_s: Callable[[], float] = _machine_time_s) -> None:
        self._read_s = read_s
        self._last_read_s = read_s()
        self._now_s = self._last_read_s
        self.last_absence_s = 0.0
        self.returned_s = float("-inf")

    def now_s(self) -> float:
        """Returns the observed time; differences between two readings are seconds."""
        read_s = self._read_s()
        passed_s = read_s - self._last_read_s
        self._last_read_s = read_s
        self._now_s += min(passed_s, _LONGEST_S)
        if passed_s > _LONGEST_S:
            self.last_absence_s = passed_s
            self.returned_s = self._now_s
        return self._now_s

    def absence_before_s(self, time_s: float) -> float:
        """Returns the length of a suspension that another process may have taken for an end.

        One that had ended longer than `SILENCE_S` seconds before `time_s`, or was shorter than
        that, has nothing to do with it: 0.0.
        """
        is_near = 0.0 <= time_s - self.returned_s < SILENCE_S
        return self.last_absence_s if is_near and self.last_absence_s > SILENCE_S else 0.0
