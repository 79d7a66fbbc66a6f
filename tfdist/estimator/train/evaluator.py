"""Evaluation during a training: the newest checkpoint, the exporters, and the times."""

from __future__ import annotations

import os
import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.estimator.checkpoints.background import WaitingListener
from tfdist.estimator.checkpoints.recovery import newest_whole
from tfdist.estimator.checkpoints.training_end import TrainingEnd
from tfdist.estimator.config.arguments import whole_steps
from tfdist.estimator.estimator import Estimator
from tfdist.estimator.graph.steady_timer import SteadyTimer
from tfdist.estimator.train.train_spec import EvalSpec
from tfdist.process.progress_file import find_progress_file
from tfdist.strategies import stop_signals
from tfdist.strategies.saving.checkpoint_files import CheckpointDamagedError

_WARN_EVERY_S = 600
_SHORTEST_WAIT_S = 0.2
_LOOK_EVERY_S = 2.0  # for the end of the training


class EvaluationStatus:
    """The outcomes of a look for a checkpoint, in tf.estimator's words."""

    EVALUATED = "evaluated"
    MISSING_CHECKPOINT = "missing checkpoint"
    NO_NEW_CHECKPOINT = "no new checkpoint"


@dataclass(frozen=True)
class EvaluationResult:
    """The results of `Estimator.evaluate` and of the exporters, in order, for a checkpoint.

    tf.estimator's class has the first three attributes, which may be given by their places.

    Attributes:
      status: One of `EvaluationStatus`; without a new checkpoint there is nothing else.
      metrics: The results of `Estimator.evaluate`.
      checkpoint_path: The checkpoint.
      exports: The results of the exporters.
      is_final: Whether the checkpoint's step has reached max_steps.
    """

    status: str
    metrics: dict[str, Any] | None = None
    checkpoint_path: str | None = None
    exports: list[Any] | None = field(default=None, kw_only=True)
    is_final: bool = field(default=False, kw_only=True)

    @property
    def is_new(self) -> bool:
        return self.status == EvaluationStatus.EVALUATED


class EvaluationListener:
    """May end a training or an evaluator from around its evaluations, as in tf.estimator."""

    def before_eval(self) -> bool:
        """Returns whether to go on."""
        return True

    def after_eval(self, eval_result: EvaluationResult) -> bool:
        """Returns whether to go on."""
        return True


class Evaluator:
    """Evaluates an Estimator's newest checkpoint and calls the exporters.

    `max_steps` is the global step at which training ends; None if it is not known.
    """

    def __init__(self, estimator: Estimator, eval_spec: EvalSpec, max_steps: float | None) -> None:
        self.eval_spec = eval_spec
        self.last: EvaluationResult | None = None
        self._estimator = estimator
        self._max_steps = max_steps
        self._evaluated_path: str | None = None
        self._warned_at = float("-inf")

    def evaluate(self) -> EvaluationResult:
        """Evaluates a new checkpoint; says now and then that there is none.

        Raises:
          TypeError, ValueError: If `Estimator.evaluate` was replaced by something that does not
            return a dict with the global step.
        """
        path = self._estimator.latest_checkpoint()
        if not path:
            self._warn("Estimator is not trained yet. Will start an evaluation when a checkpoint "
                       "is ready.")  # fmt: skip
            return EvaluationResult(status=EvaluationStatus.MISSING_CHECKPOINT)
        if path == self._evaluated_path:
            self._warn("No new checkpoint ready for evaluation. Skip this round: the results would "
                       "be the same.")  # fmt: skip
            return EvaluationResult(status=EvaluationStatus.NO_NEW_CHECKPOINT)
        path = self._whole(path)
        if path is None or path == self._evaluated_path:
            return EvaluationResult(status=EvaluationStatus.NO_NEW_CHECKPOINT)
        spec = self.eval_spec
        metrics = self._estimator.evaluate(
            input_fn=spec.input_fn,
            steps=spec.steps,
            name=spec.name,
            checkpoint_path=path,
            hooks=spec.hooks,
        )
        _check_metrics(metrics)
        is_final = bool(self._max_steps) and metrics["global_step"] >= self._max_steps
        exports = self._export(path, metrics, is_final)
        self._warned_at = float("-inf")
        self._evaluated_path = path
        self.last = EvaluationResult(
            status=EvaluationStatus.EVALUATED,
            metrics=metrics,
            exports=exports,
            is_final=is_final,
            checkpoint_path=path,
        )
        return self.last

    def _whole(self, path: str) -> str | None:
        """Returns this checkpoint or, if it is damaged, the newest whole one; None without one.

        A path that an own `latest_checkpoint` has found elsewhere is returned as it is.
        """
        folder = tf.compat.as_str_any(self._estimator.model_dir)
        if os.path.dirname(tf.compat.as_str_any(path)) != folder.rstrip("/"):
            return path
        try:
            return newest_whole(folder, first=path)
        except CheckpointDamagedError as error:  # The next one may be whole.
            self._warn(str(error))
            return None

    def _export(self, path: str, metrics: dict[str, Any], is_final: bool) -> list[Any]:
        folder = os.path.join(tf.compat.as_str_any(self._estimator.model_dir), "export")
        return [
            exporter.export(
                estimator=self._estimator,
                export_path=os.path.join(folder, exporter.name),
                checkpoint_path=path,
                eval_result=metrics,
                is_the_final_export=is_final,
            )
            for exporter in self.eval_spec.exporters
        ]

    def _warn(self, message: str) -> None:
        now = time.monotonic()
        if now - self._warned_at > _WARN_EVERY_S:
            v1.logging.warning(message)
            self._warned_at = now


class EvaluateAfterSave(WaitingListener):
    """Evaluates saved checkpoints, except the one at the start, and not too often.

    A stop signal ends the evaluation: at that time all training is already saved.
    """

    def __init__(self, evaluator: Evaluator, listener: EvaluationListener) -> None:
        self._evaluator = evaluator
        self._listener = listener
        self._throttle_secs = evaluator.eval_spec.throttle_secs

    def begin(self) -> None:
        self._timer = SteadyTimer(every_secs=self._throttle_secs)
        self._is_first = True

    def after_save(self, session: v1.Session, global_step_value: int) -> bool:
        """Returns whether the listener ends the training."""
        if self._is_first:  # Nothing is trained yet.
            self._is_first = False
            return False
        if not self._listener.before_eval():
            v1.logging.info("The training ends, as requested by before_eval of a listener.")
            return True
        if self._timer.should_trigger_for_step(global_step_value):
            return not self._evaluate(global_step_value)
        v1.logging.info(
            "Skip the current checkpoint eval due to throttle secs (%s secs).",
            self._throttle_secs,
        )
        return False

    def end(self, session: v1.Session, global_step_value: int) -> None:
        is_new = self._timer.last_triggered_step() != global_step_value
        if is_new and self._listener.before_eval():
            self._evaluate(global_step_value)

    def _evaluate(self, global_step_value: int) -> bool:
        """Evaluates; returns whether the training goes on."""
        signals = stop_signals.current()
        if signals is not None and signals.is_stopping:
            return True
        self.wait_for_files()
        self._timer.update_last_triggered_step(global_step_value)
        with nullcontext() if signals is None else signals.at_once():
            evaluation = self._evaluator.evaluate()
        if not evaluation.is_new:
            raise RuntimeError(
                "There was no new checkpoint after the training. Is something else writing to, or "
                "deleting from, model_dir?"
            )
        goes_on = self._listener.after_eval(evaluation)
        if not goes_on:
            v1.logging.info("The training ends, as requested by after_eval of a listener.")
        return goes_on


def evaluate_continuously(
    evaluator: Evaluator,
    max_steps: float | None,
    training_end: TrainingEnd,
    listener: EvaluationListener,
) -> None:
    """Evaluates each new checkpoint until one has reached max_steps, or the training has ended.

    After the note of the chief the newest checkpoint is the last one. The listener may end it
    before.
    """
    spec, file = evaluator.eval_spec, find_progress_file()
    if file is not None:
        file.write(total_steps=whole_steps("max_steps", max_steps) or -1)
    if spec.start_delay_secs:
        v1.logging.info("Waiting %f secs before starting eval.", spec.start_delay_secs)
        _sleep(spec.start_delay_secs, training_end)
    has_warned = False
    while True:
        started = time.monotonic()
        has_ended = training_end.has_come()  # Before the look for the newest checkpoint.
        if not listener.before_eval():
            v1.logging.info("Exiting evaluation, as requested by before_eval of a listener.")
            return
        evaluation = evaluator.evaluate()
        metrics = evaluation.metrics or {}
        if metrics and file is not None:
            file.write(step=int(metrics["global_step"]), loss=float(metrics.get("loss", "nan")))
        if not listener.after_eval(evaluation):
            v1.logging.info("Exiting evaluation, as requested by after_eval of a listener.")
            return
        if evaluation.is_final:
            v1.logging.info(
                "Exiting evaluation, global_step=%s >= train max_steps=%s",
                metrics["global_step"],
                max_steps,
            )
            return
        if has_ended:
            v1.logging.info("Exiting evaluation: the training has ended, and its last checkpoint "
                            "is evaluated.")  # fmt: skip
            return
        left = spec.throttle_secs - (time.monotonic() - started)
        if left > 0:
            v1.logging.info("Waiting %f secs before starting next eval run.", left)
            _sleep(left, training_end)
        elif spec.throttle_secs == 0 and not evaluation.is_new:
            if not has_warned:
                v1.logging.warning(
                    "EvalSpec.throttle_secs is set as 0. This might overload the job before "
                    "finding (next) new checkpoint. Please consider to increase it."
                )
            has_warned = True
            time.sleep(_SHORTEST_WAIT_S)  # Without a pause the loop would keep a core busy.


def _sleep(seconds: float, training_end: TrainingEnd) -> None:
    while seconds > 0 and not training_end.has_come():
        time.sleep(min(seconds, _LOOK_EVERY_S))
        seconds -= _LOOK_EVERY_S


def _check_metrics(metrics: object) -> None:
    if not metrics:
        raise ValueError(
            "Internal error: `Estimator.evaluate` should never return empty metrics, got "
            f"{metrics!r}."
        )
    if not isinstance(metrics, dict):
        raise TypeError(f"`Estimator.evaluate` should return dict. Given {type(metrics)}.")
    if "global_step" not in metrics:
        raise ValueError(
            "Internal error: `Estimator.evaluate` result should have `global_step` in result. "
            f"Given {metrics}."
        )
