"""The session calls of a training, seen from just around them: no other hook is in between."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as v1


class CallTimes:
    """How long calls take.

    Attributes:
      began_s: `time.monotonic()` at the beginning of the call that runs; None between calls.
      longest_s: The longest call so far.
    """

    def __init__(self) -> None:
        self.began_s: float | None = None
        self.longest_s = 0.0

    def lasting_s(self, since_s: float) -> float | None:
        """Returns how long a call has lasted, of that only since a time; None between calls."""
        began_s = self.began_s
        return None if began_s is None else time.monotonic() - max(began_s, since_s)

    def begin(self) -> None:
        self.began_s = time.monotonic()

    def end(self) -> None:
        if self.began_s is not None:
            self.longest_s = max(self.longest_s, time.monotonic() - self.began_s)
            self.began_s = None


class BeforeCalls(v1.train.SessionRunHook):  # type: ignore[misc]
    """Tells that a call begins; the last one of the hooks.

    Args:
      *listeners: Whom.
    """

    def __init__(self, *listeners: Callable[[], None]) -> None:
        self._listeners = listeners

    def before_run(self, run_context: Any) -> None:
        for listener in self._listeners:
            listener()


class AfterCalls(v1.train.SessionRunHook):  # type: ignore[misc]
    """Tells that a call has ended; the first one of the hooks.

    Args:
      listener: Whom.
    """

    def __init__(self, listener: Callable[[], None]) -> None:
        self._listener = listener

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self._listener()
