"""SteadyTimer: the times to save, to evaluate and to check, by a clock that no one sets."""

from __future__ import annotations

from time import monotonic

import tensorflow.compat.v1 as v1


class SteadyTimer(v1.train.SecondOrStepTimer):  # type: ignore[misc]
    """TensorFlow's timer with another clock.

    TensorFlow compares times of day: where the clock is set back by an hour, as after a machine's
    sleep, nothing would be saved in that hour.

    Args:
      every_secs: The seconds between two triggers; None counts steps.
      every_steps: The steps between two triggers; None counts seconds.

    Raises:
      ValueError: If both are given, or none.
    """

    def __init__(self, every_secs: float | None = None, every_steps: int | None = None) -> None:
        self._seconds = every_secs
        super().__init__(every_secs, every_steps)

    def reset(self) -> None:
        super().reset()
        self._triggered_at: float | None = None

    def should_trigger_for_step(self, step: int) -> bool:
        if self._seconds is None or self._triggered_at is None:
            return bool(super().should_trigger_for_step(step))
        is_due = monotonic() >= self._triggered_at + self._seconds
        return is_due and step != self.last_triggered_step()

    def update_last_triggered_step(self, step: int) -> tuple[float | None, int | None]:
        now, before = monotonic(), self._triggered_at
        _, steps = super().update_last_triggered_step(step)
        self._triggered_at = now
        return None if before is None else now - before, steps
