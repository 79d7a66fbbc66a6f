"""Stopping at a global step, also when a session call makes several."""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v1 as v1


class LastStep(v1.train.SessionRunHook):  # type: ignore[misc]
    """Reads the global step at the end of a training.

    Attributes:
      step: That step; -1 before.
    """

    step = -1

    def begin(self) -> None:
        self._global_step = v1.train.get_global_step()

    def end(self, session: Any) -> None:
        self.step = int(session.run(self._global_step))


class StopAtStep(v1.train.SessionRunHook):  # type: ignore[misc]
    """Stops after a number of steps, or at a global step; equal on all workers.

    Args:
      num_steps: Steps from where the session starts; None if `last_step` says.
      last_step: The global step to stop at, or the first one beyond it.
      steps_per_call: Steps in one session call.
    """

    def __init__(self, num_steps: int | None, last_step: int | None, steps_per_call: int) -> None:
        self._num_steps = num_steps
        self._last_step = last_step
        self._steps_per_call = steps_per_call

    def begin(self) -> None:
        self._global_step = v1.train.get_global_step()

    def after_create_session(self, session: Any, coord: Any) -> None:
        if self._num_steps is not None:
            self._last_step = int(session.run(self._global_step)) + self._num_steps

    def before_run(self, run_context: Any) -> v1.train.SessionRunArgs:
        return v1.train.SessionRunArgs(self._global_step)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        # Fetched beside the steps, the value may be the one before or after them.
        at_most = int(run_values.results) + self._steps_per_call
        if (
            self._last_step is not None
            and at_most >= self._last_step
            and int(run_context.session.run(self._global_step)) >= self._last_step
        ):
            run_context.request_stop()


def told_of_the_loop(hook: v1.train.SessionRunHook, steps_per_call: int) -> v1.train.SessionRunHook:
    """Tells one of TensorFlow's own hooks how many steps a session call makes.

    Args:
      hook: A user's hook. A CheckpointSaverHook or StepCounterHook is told so itself.
      steps_per_call: Steps in one session call.

    Returns:
      The hook, or in place of TensorFlow's StopAtStepHook, which would stop a call too late where
      a call ends exactly at its step, a `StopAtStep`. Heirs of that class stay as they are.
    """
    if steps_per_call == 1:
        return hook
    if type(hook) is v1.train.StopAtStepHook:
        # No public way to read them.
        return StopAtStep(hook._num_steps, hook._last_step, steps_per_call)
    if hasattr(hook, "_set_steps_per_run"):
        hook._set_steps_per_run(steps_per_call)  # No public way to say so.
    return hook
