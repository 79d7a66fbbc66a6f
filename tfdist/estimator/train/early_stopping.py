"""Hooks that end training: depending on evaluations, or once a checkpoint is on disk.

With other workers a hook's request to stop is passed on to all of them (`agreement.DeferredStop`),
and all stop after the same step. A decision on one worker is therefore enough.

tf.estimator notified its other workers through a variable, `signal_early_stopping/STOP`, which its
checkpoints contain. tfdist does not read this variable. New checkpoints include it, so that
tf.estimator can resume from them. A training that resumes from a checkpoint without the variable
leaves it out, because restoring would fail. tf.estimator has saved True there at the end of a run
that was stopped early; here it is False from the first step on.
"""

from __future__ import annotations

import math
import operator
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1
from tensorflow.compat.v1.train import SessionRunContext, SessionRunValues

from tfdist.cluster.arguments import check_number, check_whole
from tfdist.estimator.checkpoints import listing
from tfdist.estimator.checkpoints.recovery import newest_whole
from tfdist.estimator.estimator import Estimator
from tfdist.estimator.evaluation.eval_events import is_first_number, read_eval_metrics
from tfdist.estimator.graph.steady_timer import SteadyTimer
from tfdist.strategies.saving.checkpoint_files import step_of

__all__ = [
    "make_early_stopping_hook",
    "read_eval_metrics",
    "stop_if_higher_hook",
    "stop_if_lower_hook",
    "stop_if_no_decrease_hook",
    "stop_if_no_increase_hook",
]

_SCOPE, _VARIABLE = "signal_early_stopping", "STOP"

_Metrics = dict[int, dict[str, float]]


def make_early_stopping_hook(
    estimator: Estimator,
    should_stop_fn: Callable[[], bool],
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> v1.train.SessionRunHook:
    """Makes a hook that calls a function at intervals and ends training once it returns True.

    Every worker that has the hook calls its function. True on one worker ends training on all
    workers.

    Args:
      estimator: The Estimator that trains.
      should_stop_fn: Takes no argument and returns a bool; first called after the first step.
      run_every_secs: Seconds between two calls.
      run_every_steps: Steps between two calls; needs `run_every_secs=None`.

    Raises:
      TypeError: If `estimator` is not an Estimator, or `should_stop_fn` is not callable.
      ValueError: If both intervals are given, or none.
    """
    if not isinstance(estimator, Estimator):
        raise TypeError(
            f"`estimator` must have type tfdist.estimator.Estimator. Got: {type(estimator)}"
        )
    if run_every_secs is not None and run_every_steps is not None:
        raise ValueError(
            "Only one of `run_every_secs` and `run_every_steps` must be set. Give "
            "run_every_secs=None to count steps."
        )
    if run_every_secs is not None:
        check_number("run_every_secs", run_every_secs)
    if run_every_steps is not None:
        check_whole("run_every_steps", run_every_steps)
    if not callable(should_stop_fn):
        raise TypeError(f"`should_stop_fn` must be callable, got {should_stop_fn!r}.")
    timer = SteadyTimer(every_secs=run_every_secs, every_steps=run_every_steps)
    is_alone = estimator.config.train_distribute is None
    return _StopOnRequest(should_stop_fn, timer, estimator.model_dir if is_alone else None)


def stop_if_higher_hook(
    estimator: Estimator,
    metric_name: str,
    threshold: float,
    eval_dir: str | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> v1.train.SessionRunHook:
    """Makes a hook that stops once an evaluated metric was higher than a threshold.

    Worker 0 decides, from the event files of all evaluations so far.

    Args:
      estimator: The Estimator that trains.
      metric_name: Name of the metric; KeyError while training if an evaluation lacks it.
      threshold: The value that the metric must exceed.
      eval_dir: Folder of the event files; None is `estimator.eval_dir()`.
      min_steps: Evaluations of earlier global steps do not count.
      run_every_secs: Seconds between two checks.
      run_every_steps: Steps between two checks; needs `run_every_secs=None`.
    """
    decide = _crossing(metric_name, threshold, operator.gt, "greater than")
    return _stop_if(estimator, decide, eval_dir, min_steps, run_every_secs, run_every_steps)


def stop_if_lower_hook(
    estimator: Estimator,
    metric_name: str,
    threshold: float,
    eval_dir: str | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> v1.train.SessionRunHook:
    """Makes a hook that stops once an evaluated metric was lower than a threshold.

    The arguments are as in `stop_if_higher_hook`.
    """
    decide = _crossing(metric_name, threshold, operator.lt, "less than")
    return _stop_if(estimator, decide, eval_dir, min_steps, run_every_secs, run_every_steps)


def stop_if_no_increase_hook(
    estimator: Estimator,
    metric_name: str,
    max_steps_without_increase: int,
    eval_dir: str | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> v1.train.SessionRunHook:
    """Makes a hook that stops once a metric has not risen for a number of steps.

    It stops if an evaluation is `max_steps_without_increase` steps or more after the best one
    before it. The other arguments are as in `stop_if_higher_hook`.
    """
    decide = _stalling(metric_name, max_steps_without_increase, operator.gt, "increase")
    return _stop_if(estimator, decide, eval_dir, min_steps, run_every_secs, run_every_steps)


def stop_if_no_decrease_hook(
    estimator: Estimator,
    metric_name: str,
    max_steps_without_decrease: int,
    eval_dir: str | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> v1.train.SessionRunHook:
    """Makes a hook that stops once a metric has not fallen for a number of steps.

    `max_steps_without_decrease` and the others are as in `stop_if_no_increase_hook`.
    """
    decide = _stalling(metric_name, max_steps_without_decrease, operator.lt, "decrease")
    return _stop_if(estimator, decide, eval_dir, min_steps, run_every_secs, run_every_steps)


# From metrics to the line with the reason to stop, or None.
_Decision = Callable[[_Metrics], str | None]


def _crossing(name: str, threshold: float, is_beyond: Any, words: str) -> _Decision:
    check_number("threshold", threshold, least=-math.inf)

    def decide(metrics: _Metrics) -> str | None:
        for step, values in metrics.items():
            if is_beyond(values[name], threshold):
                what = f'At step {step}, metric "{name}" has value {values[name]}'
                return f"{what} which is {words} the threshold ({threshold})."
        return None

    return decide


def _stalling(name: str, max_steps: int, is_better: Any, word: str) -> _Decision:
    check_whole(f"max_steps_without_{word}", max_steps, least=0)

    def decide(metrics: _Metrics) -> str | None:
        best: tuple[int, float] | None = None
        for step, values in metrics.items():
            value = values[name]
            if best is None or is_better(value, best[1]) or is_first_number(value, best[1]):
                best = (step, value)
            if step - best[0] >= max_steps:
                return (
                    f'No {word} in metric "{name}" for {step - best[0]} steps, which is greater '
                    f"than or equal to max steps ({max_steps})."
                )
        return None

    return decide


def _stop_if(
    estimator: Estimator,
    decide: _Decision,
    eval_dir: str | None,
    min_steps: int,
    run_every_secs: float | None,
    run_every_steps: int | None,
) -> v1.train.SessionRunHook:
    check_whole("min_steps", min_steps, least=0)

    def should_stop() -> bool:
        # Another worker's model_dir may contain event files of an earlier run.
        if not estimator.config.is_chief:
            return False
        every = read_eval_metrics(estimator.eval_dir() if eval_dir is None else eval_dir)
        reason = decide({step: values for step, values in every.items() if step >= min_steps})
        if reason is not None:
            v1.logging.info("%s", reason)
        return reason is not None

    hook = make_early_stopping_hook(estimator, should_stop, run_every_secs, run_every_steps)
    hook.reads_evaluations = True
    return hook


class _StopOnRequest(v1.train.SessionRunHook):  # type: ignore[misc]
    """Calls a function at intervals, and requests to stop when it returns True.

    Without `checkpoint_dir`, the folder that training resumes from, tf.estimator's variable is
    left out.
    """

    reads_evaluations = False  # Whether the function looks at the results of evaluations.

    def __init__(
        self,
        should_stop_fn: Callable[[], bool],
        timer: v1.train.SecondOrStepTimer,
        checkpoint_dir: str | None,
    ) -> None:
        self._should_stop_fn = should_stop_fn
        self._timer = timer
        self._checkpoint_dir = checkpoint_dir
        self._unset: tf.Operation | None = None

    def begin(self) -> None:
        self._global_step = v1.train.get_global_step()
        if self._checkpoint_dir is not None and _fits_checkpoint(self._checkpoint_dir):
            self._unset = _stop_variable().assign(False).op

    def after_create_session(self, session: v1.Session, coord: v1.train.Coordinator) -> None:
        # A restored True would stop tf.estimator's other workers at once when they resume.
        if self._unset is not None:
            session.run(self._unset)

    def before_run(self, run_context: SessionRunContext) -> v1.train.SessionRunArgs:
        return v1.train.SessionRunArgs(self._global_step)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        step = int(run_values.results)
        if not self._timer.should_trigger_for_step(step):
            return
        self._timer.update_last_triggered_step(step)
        if self._should_stop_fn():
            v1.logging.info("Requesting early stopping at global step %d", step)
            run_context.request_stop()


def _fits_checkpoint(checkpoint_dir: str) -> bool:
    """Returns whether a model with tf.estimator's variable can be restored from the folder."""
    latest = newest_whole(checkpoint_dir)
    name = f"{_SCOPE}/{_VARIABLE}"
    return latest is None or tf.train.load_checkpoint(latest).has_tensor(name)


def _stop_variable() -> tf.Variable:
    # Several hooks share it.
    with v1.variable_scope(_SCOPE, values=[], reuse=v1.AUTO_REUSE):
        return v1.get_variable(
            _VARIABLE,
            shape=[],
            dtype=tf.bool,
            initializer=v1.constant_initializer(False),
            collections=[v1.GraphKeys.GLOBAL_VARIABLES],
            trainable=False,
        )


def make_stop_at_checkpoint_step_hook(
    estimator: Estimator, last_step: int, wait_after_file_check_secs: float = 30
) -> v1.train.SessionRunHook:
    """Makes a hook that ends training at a global step, once its checkpoint exists.

    Under a strategy, and on the chief, it stops at that step. All workers end together, after
    worker 0 has saved. Another task has a separate session that shares model_dir and the global
    step with the chief's. It continues until it finds the chief's checkpoint of that step.

    Args:
      estimator: The Estimator that trains.
      last_step: The global step.
      wait_after_file_check_secs: Seconds that such a task sleeps between two checks.

    Raises:
      ValueError: If `last_step` is None.
    """
    config = estimator.config
    if config.is_chief or config.train_distribute is not None:
        return v1.train.StopAtStepHook(last_step=last_step)
    return _StopAtCheckpointStep(estimator.model_dir, last_step, wait_after_file_check_secs)


class _StopAtCheckpointStep(v1.train.SessionRunHook):  # type: ignore[misc]
    def __init__(self, model_dir: str, last_step: int, wait_s: float) -> None:
        if last_step is None:
            raise ValueError("last_step must be specified, got None.")
        self._model_dir = model_dir
        self._last_step = last_step
        self._wait_s = wait_s

    def begin(self) -> None:
        self._global_step = v1.train.get_global_step()
        if self._global_step is None:
            raise RuntimeError(
                "Global step should be created to stop at one. Call "
                "tf.compat.v1.train.create_global_step() in this graph."
            )

    def before_run(self, run_context: SessionRunContext) -> v1.train.SessionRunArgs:
        return v1.train.SessionRunArgs(self._global_step)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        # The step was fetched in the same call that may have incremented it.
        if int(run_values.results) + 1 < self._last_step:
            return
        newest = listing.latest(self._model_dir)
        if newest is not None and step_of(newest) >= self._last_step:
            run_context.request_stop()
        else:
            time.sleep(self._wait_s)
