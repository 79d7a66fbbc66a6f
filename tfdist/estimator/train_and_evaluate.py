"""train_and_evaluate: one call for every task of a run."""

from __future__ import annotations

import json
import time
from typing import Any

import tensorflow.compat.v1 as v1

from tfdist.estimator import checkpoints
from tfdist.estimator.estimator import Estimator
from tfdist.estimator.interrupts import prompt_interrupts
from tfdist.estimator.lost_workers import lost_workers_named
from tfdist.estimator.train_spec import EvalSpec, TrainSpec
from tfdist.strategies.text_exchange import TextExchange

_WARN_EVERY_S = 600


def train_and_evaluate(
    estimator: Estimator, train_spec: TrainSpec, eval_spec: EvalSpec
) -> tuple[dict[str, Any] | None, list[Any] | None]:
    """Trains and evaluates, as this process's task in the run demands.

    Alone, training and evaluation alternate: each checkpoint is evaluated, at most every
    `throttle_secs`, and the last one always. In a cluster all workers train together; a task of
    type evaluator evaluates each new checkpoint until the last; if the cluster lists none, worker 0
    evaluates once at the end while the others wait for it.

    Returns:
      (metrics of the last evaluation, the exporters' results); (None, None) where training had
      nothing to do. Without an evaluator task every worker gets worker 0's metrics.

    Raises:
      TypeError: If an argument has a wrong type.
      ValueError: If this task cannot take part.
    """
    _check_types(estimator, train_spec, eval_spec)
    config = estimator.config
    if config.task_type == "evaluator":
        return _evaluate_continuously(estimator, train_spec, eval_spec)
    if config.num_worker_replicas <= 1:
        return _train_and_evaluate_alone(estimator, train_spec, eval_spec)
    return _train_together(estimator, train_spec, eval_spec)


# Alone.


def _train_and_evaluate_alone(
    estimator: Estimator, train_spec: TrainSpec, eval_spec: EvalSpec
) -> tuple[dict[str, Any] | None, list[Any] | None]:
    v1.logging.info("Running training and evaluation locally (non-distributed).")
    config = estimator.config
    v1.logging.info(
        "Start train and evaluate loop. The evaluate will happen after every checkpoint. "
        "Checkpoint frequency is determined based on RunConfig arguments: save_checkpoints_steps "
        "%s or save_checkpoints_secs %s.",
        config.save_checkpoints_steps,
        config.save_checkpoints_secs,
    )
    evaluator = _Evaluator(estimator, train_spec, eval_spec)
    listener = _EvaluateAfterSave(evaluator, eval_spec.throttle_secs)
    estimator.train(
        input_fn=train_spec.input_fn,
        max_steps=train_spec.max_steps,
        hooks=list(train_spec.hooks),
        saving_listeners=[*train_spec.saving_listeners, listener],
    )
    return evaluator.metrics, evaluator.exports


class _EvaluateAfterSave(v1.train.CheckpointSaverListener):  # type: ignore[misc]
    """Evaluates after a checkpoint, but not the one at the start, and not too often."""

    def __init__(self, evaluator: _Evaluator, throttle_secs: float) -> None:
        self._evaluator = evaluator
        self._timer = v1.train.SecondOrStepTimer(every_secs=throttle_secs or 1e-9)
        self._is_first = True

    def begin(self) -> None:
        self._timer.reset()
        self._is_first = True

    def after_save(self, session: Any, global_step_value: int) -> None:
        if self._is_first:
            self._is_first = False
            return
        if not self._timer.should_trigger_for_step(global_step_value):
            v1.logging.info("Skip the current checkpoint eval due to throttle secs (%s secs).",
                            self._evaluator.eval_spec.throttle_secs)  # fmt: skip
            return
        self._evaluate(global_step_value)

    def end(self, session: Any, global_step_value: int) -> None:
        if self._timer.last_triggered_step() != global_step_value:
            self._evaluate(global_step_value)

    def _evaluate(self, global_step_value: int) -> None:
        self._timer.update_last_triggered_step(global_step_value)
        self._evaluator.evaluate()


class _Evaluator:
    """Evaluates the newest checkpoint and calls the exporters; remembers the last results."""

    def __init__(self, estimator: Estimator, train_spec: TrainSpec, eval_spec: EvalSpec) -> None:
        self.eval_spec = eval_spec
        self.metrics: dict[str, Any] | None = None
        self.exports: list[Any] | None = None
        self.is_final = False
        self._estimator = estimator
        self._max_steps = train_spec.max_steps

    def evaluate(self) -> None:
        spec, estimator = self.eval_spec, self._estimator
        path = estimator.latest_checkpoint()
        metrics = estimator.evaluate(
            input_fn=spec.input_fn,
            steps=spec.steps,
            name=spec.name,
            checkpoint_path=path,
            hooks=list(spec.hooks),
        )
        step = metrics["global_step"]
        self.metrics = metrics
        self.is_final = self._max_steps is not None and step >= self._max_steps
        self.exports = [
            exporter.export(
                estimator=estimator,
                export_path=f"{estimator.model_dir}/export/{exporter.name}",
                checkpoint_path=path,
                eval_result=metrics,
                is_the_final_export=self.is_final,
            )
            for exporter in spec.exporters
        ]


# In a cluster.


def _train_together(
    estimator: Estimator, train_spec: TrainSpec, eval_spec: EvalSpec
) -> tuple[dict[str, Any] | None, list[Any] | None]:
    config = estimator.config
    cluster = getattr(config.train_distribute, "cluster", None)
    has_evaluator = cluster is not None and cluster.has_evaluator
    if config.is_chief and not has_evaluator:
        v1.logging.info(
            "No evaluator task is listed: worker 0 evaluates once, after the last step."
        )
    estimator.train(
        input_fn=train_spec.input_fn,
        max_steps=train_spec.max_steps,
        hooks=list(train_spec.hooks),
        saving_listeners=list(train_spec.saving_listeners) if config.is_chief else None,
    )
    if has_evaluator:
        return None, None
    return _evaluate_on_worker_0(estimator, train_spec, eval_spec)


def _evaluate_on_worker_0(
    estimator: Estimator, train_spec: TrainSpec, eval_spec: EvalSpec
) -> tuple[dict[str, Any] | None, list[Any] | None]:
    """Worker 0 evaluates and tells the others its metrics; they wait for it."""
    share = TextExchange(estimator.config.train_distribute)
    evaluator = _Evaluator(estimator, train_spec, eval_spec)
    text = ""
    with prompt_interrupts(), lost_workers_named(estimator.config.train_distribute):
        if estimator.config.is_chief:
            evaluator.evaluate()
            text = _to_json(evaluator.metrics)
        else:
            v1.logging.info("Waiting for worker 0's evaluation.")
        metrics = json.loads(share(text)[0])
    return (evaluator.metrics or metrics), evaluator.exports


def _to_json(metrics: dict[str, Any] | None) -> str:
    def plain(value: Any) -> Any:
        if hasattr(value, "tolist"):
            return value.tolist()
        return value.decode(errors="replace") if isinstance(value, bytes) else str(value)

    return json.dumps(metrics, default=plain)


def _evaluate_continuously(
    estimator: Estimator, train_spec: TrainSpec, eval_spec: EvalSpec
) -> tuple[dict[str, Any] | None, list[Any] | None]:
    """Evaluates each new checkpoint until one has reached max_steps."""
    if estimator.config.task_id != 0:
        raise ValueError(
            f"There can be one evaluator only, with index 0, got {estimator.config.task_id}."
        )
    if train_spec.max_steps is None:
        v1.logging.warning(
            "TrainSpec has no max_steps: the evaluator cannot know the last checkpoint and waits "
            "for new ones until it is stopped."
        )
    if eval_spec.start_delay_secs:
        v1.logging.info("Waiting %f secs before starting eval.", eval_spec.start_delay_secs)
        time.sleep(eval_spec.start_delay_secs)
    evaluator = _Evaluator(estimator, train_spec, eval_spec)
    evaluated: str | None = None
    warned_at = float("-inf")
    while not evaluator.is_final:
        started = time.time()
        newest = checkpoints.latest(estimator.model_dir)
        if newest is not None and newest != evaluated:
            evaluator.evaluate()
            evaluated = newest
        elif started - warned_at > _WARN_EVERY_S:
            warned_at = started
            problem = "No new checkpoint" if evaluated else "Estimator is not trained yet"
            v1.logging.warning("%s ready for evaluation in %s.", problem, estimator.model_dir)
        if not evaluator.is_final:
            # At least a moment, or a throttle of 0 would keep a core busy with looking.
            time.sleep(max(0.2, eval_spec.throttle_secs - (time.time() - started)))
    return evaluator.metrics, evaluator.exports


# Checks.


def _check_types(estimator: Any, train_spec: Any, eval_spec: Any) -> None:
    for value, name, allowed in (
        (eval_spec, "eval_spec", EvalSpec),
        (estimator, "estimator", Estimator),
        (train_spec, "train_spec", TrainSpec),
    ):
        if not isinstance(value, allowed):
            raise TypeError(
                f"`{name}` must be a tfdist.estimator.{allowed.__name__}, given {type(value)}."
            )
