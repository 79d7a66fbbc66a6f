"""StepCounter: the global step after each session call, mostly without reading it."""

from __future__ import annotations

import tensorflow.compat.v1 as v1


class StepCounter:
    """Counts the global step without reading it: each session call adds as many steps as another.

    It is read until two calls in a row have added as many, and more than 0; with
    `GradientAccumulationOptimizer`, whose step is several calls, it is always read.

    Call `begin` while the graph is the default one, `start` once the session is open, and `count`
    after each session call.

    Attributes:
      step: The global step after the calls counted so far.
    """

    def __init__(self) -> None:
        self.step = 0
        self._steps_per_call: int | None = None
        self._made_before: int | None = None

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
        self._made_before = None

    def may_cross(self, interval_steps: int) -> bool:
        """Returns whether the coming call may reach a multiple of the interval."""
        if self._steps_per_call is None:
            return True
        return crosses(self.step, self.step + self._steps_per_call, interval_steps)

    def count(self, session: v1.Session) -> int:
        """Counts a call and returns how many steps it made."""
        made = self._steps_per_call
        if made is None:
            made = int(session.run(self._global_step)) - self.step
            self._steps_per_call = made if made > 0 and made == self._made_before else None
            self._made_before = made
        self.step += made
        return made


def crosses(before: int, after: int, interval_steps: int) -> bool:
    """Returns whether a multiple of the interval lies in (before, after]."""
    return after // interval_steps > before // interval_steps
