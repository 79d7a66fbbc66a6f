"""The global step after each session call, without asking the session each time."""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v1 as v1


class StepCounter:
    """Counts a session's global step; every session call adds as many steps as the first one did.

    Use it from a session hook: `begin` while the graph is built, `start` when the session is there,
    and `count` after each call.

    Attributes:
      step: The global step after the calls counted so far.
    """

    def __init__(self) -> None:
        self.step = 0
        self._steps_per_call: int | None = None

    def begin(self) -> None:
        self._global_step = v1.train.get_global_step()
        if self._global_step is None:
            raise RuntimeError(
                "This graph has no global step, which the hook needs. Call "
                "tf.compat.v1.train.create_global_step() first."
            )

    def start(self, session: v1.Session) -> None:
        self.step = int(session.run(self._global_step))
        self._steps_per_call = None

    def may_cross(self, interval_steps: int) -> bool:
        """Says whether the coming call reaches a multiple of the interval, as far as is known."""
        if self._steps_per_call is None:
            return True
        return crosses(self.step, self.step + self._steps_per_call, interval_steps)

    def count(self, session: v1.Session) -> int:
        """Counts a call and returns how many steps it made."""
        if self._steps_per_call is None:
            self._steps_per_call = int(session.run(self._global_step)) - self.step
        self.step += self._steps_per_call
        return self._steps_per_call


def crosses(before: int, after: int, interval_steps: int) -> bool:
    """Says whether a multiple of the interval lies in (before, after]."""
    return after // interval_steps > before // interval_steps


def checked_interval(every_n_steps: Any) -> int:
    """Returns the interval; ValueError unless it is an integer of at least 1."""
    is_integer = isinstance(every_n_steps, int) and not isinstance(every_n_steps, bool)
    if not is_integer or every_n_steps < 1:
        raise ValueError(f"every_n_steps must be an integer of at least 1, got {every_n_steps!r}.")
    return int(every_n_steps)
