"""Stopping once the checkpoint of a step is on disk."""

from __future__ import annotations

import time
from typing import Any

import tensorflow.compat.v1 as v1

from tfdist.estimator import checkpoints
from tfdist.estimator.estimator import Estimator


def make_stop_at_checkpoint_step_hook(
    estimator: Estimator, last_step: int, wait_after_file_check_secs: float = 30
) -> v1.train.SessionRunHook:
    """Makes a hook that ends training at a global step, once its checkpoint exists.

    Under a strategy, and on the chief, it stops at that step: workers end together, after worker 0
    has saved. Another task, in a session of its own that shares model_dir and the global step with
    the chief's, goes on until it finds the chief's checkpoint of that step.

    Args:
      estimator: The Estimator that trains.
      last_step: The global step.
      wait_after_file_check_secs: Seconds that such another task sleeps between two looks.

    Raises:
      ValueError: If `last_step` is None.
    """
    config = estimator.config
    if config.is_chief or config.train_distribute is not None:
        return v1.train.StopAtStepHook(last_step=last_step)
    return _StopAtCheckpointStep(estimator.model_dir, last_step, wait_after_file_check_secs)


class _StopAtCheckpointStep(v1.train.SessionRunHook):  # type: ignore[misc]
    """Stops once a folder's newest checkpoint has reached a step.

    Args:
      model_dir: The folder.
      last_step: The step.
      wait_after_file_check_secs: Seconds to sleep after each look, since many may be looking.
    """

    def __init__(
        self, model_dir: str, last_step: int, wait_after_file_check_secs: float = 30
    ) -> None:
        if last_step is None:
            raise ValueError("last_step must be specified, got None.")
        if model_dir is None:
            raise ValueError("model_dir must be specified, got None.")
        self._model_dir = model_dir
        self._last_step = last_step
        self._wait_s = wait_after_file_check_secs

    def begin(self) -> None:
        self._global_step = v1.train.get_global_step()
        if self._global_step is None:
            raise RuntimeError(
                "Global step should be created to stop at one. Call "
                "tf.compat.v1.train.create_global_step() in this graph."
            )

    def before_run(self, run_context: Any) -> v1.train.SessionRunArgs:
        return v1.train.SessionRunArgs(self._global_step)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        # The step was fetched beside the call that may have incremented it.
        if int(run_values.results) + 1 < self._last_step:
            return
        newest = checkpoints.latest(self._model_dir)
        if newest is not None and checkpoints.step_of(newest) >= self._last_step:
            run_context.request_stop()
        else:
            time.sleep(self._wait_s)
