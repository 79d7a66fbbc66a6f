"""`train_and_evaluate`: one call for every task of a run."""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.cluster.instance_variables import is_evaluator_launched
from tfdist.cluster.tasks import TaskType
from tfdist.estimator.checkpoints.training_end import TrainingEnd, remove_end, write_end
from tfdist.estimator.config.arguments import check_multiple, whole_steps
from tfdist.estimator.config.run_config import RunConfig
from tfdist.estimator.config.task_role import refuse_parameter_servers
from tfdist.estimator.estimator import Estimator
from tfdist.estimator.evaluation.exporters import BestExporter
from tfdist.estimator.loop.parameter_servers import end_if_server
from tfdist.estimator.train.evaluator import (
    EvaluateAfterSave,
    EvaluationListener,
    Evaluator,
    evaluate_continuously,
)
from tfdist.estimator.train.train_spec import EvalSpec, TrainSpec
from tfdist.process.progress_file import in_phase
from tfdist.process.text import listed
from tfdist.strategies.lost_workers import lost_workers_named
from tfdist.strategies.stop_signals import listening
from tfdist.strategies.values.gather_text import TextExchange

Results = tuple[dict[str, Any] | None, list[Any] | None]

_TASKS = (TaskType.CHIEF, TaskType.EVALUATOR, TaskType.MASTER, TaskType.PS, TaskType.WORKER)


def train_and_evaluate(estimator: Estimator, train_spec: TrainSpec, eval_spec: EvalSpec) -> Results:
    """Trains and evaluates, according to this process's task in the run.

    A process alone alternates training and evaluation. Each checkpoint is evaluated, at most every
    `throttle_secs`; the last one is always evaluated. In a cluster all workers train together. A
    task of type evaluator evaluates each new checkpoint until the last one, which worker 0 notes in
    model_dir if the training ends before max_steps. A master evaluates after its checkpoints.
    Without either, worker 0 evaluates once at the end while the others wait.

    Args:
      estimator: The Estimator to train and to evaluate.
      train_spec: The input and the settings of training.
      eval_spec: The input and the settings of evaluation, with the exporters.

    Returns:
      (metrics of the last evaluation, the exporters' results); (None, None) if there was nothing to
      train. Without an evaluator task every worker gets worker 0's.

    Raises:
      TypeError: If an argument has a wrong type.
      ValueError: If this task cannot take part.
      RuntimeError: If the config's cluster is not usable.
    """
    return run_task(estimator, train_spec, eval_spec, EvaluationListener())


def run_task(
    estimator: Estimator, train_spec: TrainSpec, eval_spec: EvalSpec, listener: EvaluationListener
) -> Results:
    """Does the part of this process's task, as `train_and_evaluate`.

    The listener is of the evaluations in a process alone and of an evaluator task.
    """
    check_types(estimator, train_spec, eval_spec)
    config = estimator.config
    v1.logging.info("Not using Distribute Coordinator.")
    _check_task(config)
    eval_steps = whole_steps("steps", eval_spec.steps)
    check_multiple(eval_steps, config.device.iterations_per_loop)  # Before a long training.
    if config.task_type == TaskType.EVALUATOR:
        return evaluate_as_task(estimator, train_spec, eval_spec, listener)
    if _has_evaluator(config):
        _train(estimator, train_spec)
        return None, None
    if config.num_worker_replicas > 1:
        return _train_together(estimator, train_spec, eval_spec)
    return train_and_evaluate_alone(estimator, train_spec, eval_spec, listener)


def train_and_evaluate_alone(
    estimator: Estimator, train_spec: TrainSpec, eval_spec: EvalSpec, listener: EvaluationListener
) -> Results:
    """Trains, and evaluates after checkpoints, in a process alone."""
    config = estimator.config
    v1.logging.info("Running training and evaluation locally (non-distributed).")
    v1.logging.info(
        "Start train and evaluate loop. The evaluate will happen after every checkpoint. "
        "Checkpoint frequency is determined based on RunConfig arguments: save_checkpoints_steps "
        "%s or save_checkpoints_secs %s.",
        config.save_checkpoints_steps,
        config.save_checkpoints_secs,
    )
    evaluator = Evaluator(estimator, eval_spec, train_spec.max_steps)
    _train(estimator, train_spec, EvaluateAfterSave(evaluator, listener))
    return _results(evaluator)


def _train_together(estimator: Estimator, train_spec: TrainSpec, eval_spec: EvalSpec) -> Results:
    config = estimator.config
    evaluator = Evaluator(estimator, eval_spec, train_spec.max_steps)
    if config.task_type == TaskType.MASTER:
        _train(estimator, train_spec, EvaluateAfterSave(evaluator, EvaluationListener()))
    else:
        if config.is_chief:
            v1.logging.info(
                "No evaluator task is listed: worker 0 evaluates once, after the last step."
            )
            _warn_of_missed_evaluations(train_spec, eval_spec)
        _train(estimator, train_spec)
    return _share_metrics(estimator, evaluator)


def _train(
    estimator: Estimator, train_spec: TrainSpec, *own_listeners: v1.train.CheckpointSaverListener
) -> None:
    """Trains. Only the chief, which saves checkpoints, has listeners.

    Where there may be an evaluator, the chief notes the end for it. A NaN loss is an end as well.
    """
    config = estimator.config
    listeners = [*train_spec.saving_listeners, *own_listeners]
    is_part_of_run = isinstance(config, RunConfig) and (  # That of a stand-in is none.
        bool(config.cluster_spec) or _has_evaluator(config)
    )
    notes_end = is_part_of_run and config.is_chief
    if notes_end:
        remove_end(estimator.model_dir)
    try:
        estimator.train(
            input_fn=train_spec.input_fn,
            max_steps=train_spec.max_steps,
            hooks=list(train_spec.hooks),
            saving_listeners=listeners if config.is_chief else None,
        )
    except v1.train.NanLossDuringTrainingError:
        if notes_end:
            write_end(estimator.model_dir)
        raise
    if notes_end:
        write_end(estimator.model_dir)


def _share_metrics(estimator: Estimator, evaluator: Evaluator) -> Results:
    """Returns worker 0's metrics and exports on every worker.

    Worker 0 evaluates the newest checkpoint if that has not been done. The other workers wait.
    """
    config = estimator.config
    strategy: Any = config.train_distribute
    share = TextExchange(strategy)
    text = ""
    with listening(), lost_workers_named(strategy):
        if config.is_chief:
            evaluator.evaluate()
            text = _to_json(_results(evaluator))
        else:
            v1.logging.info("Waiting for worker 0's evaluation.")
        shared = _from_json(share(text)[0])
    return _results(evaluator) if config.is_chief else shared


def evaluate_as_task(
    estimator: Estimator, train_spec: TrainSpec, eval_spec: EvalSpec, listener: EvaluationListener
) -> Results:
    """Evaluates each new checkpoint, in a task of type evaluator."""
    training_end = TrainingEnd(
        tf.compat.as_str_any(estimator.model_dir)
    )  # First: the chief may begin any time.
    evaluator = Evaluator(estimator, eval_spec, train_spec.max_steps)
    with listening(), in_phase("waiting"):
        evaluate_continuously(evaluator, train_spec.max_steps, training_end, listener)
    return _results(evaluator)


def _results(evaluator: Evaluator) -> Results:
    last = evaluator.last
    return (None, None) if last is None else (last.metrics, last.exports)


def _warn_of_missed_evaluations(train_spec: TrainSpec, eval_spec: EvalSpec) -> None:
    """Warns where a hook or an exporter compares evaluations, and there will be only one."""
    # The hooks of `early_stopping` have the attribute.
    stops = any(getattr(hook, "reads_evaluations", False) for hook in train_spec.hooks)
    exports = any(isinstance(exporter, BestExporter) for exporter in eval_spec.exporters)
    users = ["early stopping"] * stops + ["BestExporter"] * exports
    if users:
        v1.logging.warning(
            "%s will see no evaluation before the training ends, since several workers train and "
            "no evaluator does. Start one: tfdist run --evaluator, or a task of type evaluator.",
            listed(users),
        )


_ARRAY, _BYTES = "tfdist array", "tfdist bytes"


def _to_json(results: Results) -> str:
    """Returns worker 0's results as text that keeps their types."""

    def plain(value: Any) -> Any:
        if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biuf":
            return {_ARRAY: value.dtype.name, "values": value.tolist()}
        if isinstance(value, bytes):
            return {_BYTES: value.decode("latin-1")}
        return value.tolist() if hasattr(value, "tolist") else str(value)

    return json.dumps(results, default=plain)


def _from_json(text: str) -> Results:
    def typed(value: dict[str, Any]) -> Any:
        if _ARRAY in value:
            array = np.asarray(value["values"], value[_ARRAY])
            return array if array.ndim else array[()]
        return value[_BYTES].encode("latin-1") if _BYTES in value else value

    metrics, exports = json.loads(text, object_hook=typed)
    return metrics, exports


def _has_evaluator(config: RunConfig) -> bool:
    """Returns whether the cluster or the launcher has an evaluator next to the training tasks."""
    if is_evaluator_launched(os.environ):
        return True
    return bool(config.cluster_spec) and TaskType.EVALUATOR in config.cluster_spec.jobs


# Checks.


def check_types(estimator: Any, train_spec: Any, eval_spec: Any) -> None:
    """Raises a TypeError if an argument of `train_and_evaluate` has another type."""
    for value, name, allowed in (
        (eval_spec, "eval_spec", EvalSpec),
        (estimator, "estimator", Estimator),
        (train_spec, "train_spec", TrainSpec),
    ):
        if not isinstance(value, allowed):
            raise TypeError(
                f"`{name}` must have type `tf.estimator.{allowed.__name__}` (tfdist's). Got: "
                f"{type(value)}"
            )


def _check_task(config: RunConfig) -> None:
    task_type = config.task_type
    if task_type == TaskType.EVALUATOR:
        if config.task_id > 0:
            raise ValueError(
                "For distributed training, there can only be one `evaluator` task (with task id "
                f"0). Given task id {config.task_id}."
            )
        return
    if not config.cluster_spec:
        return
    if task_type == "local":
        raise ValueError(
            "`task.type` in TF_CONFIG cannot be `local`. Leave out `cluster` and `task` to train "
            "and evaluate in one process."
        )
    if task_type not in _TASKS:
        raise ValueError(
            f"Task type {task_type} is not supported. Supported task types are {list(_TASKS)}"
        )
    end_if_server(config)
    refuse_parameter_servers(config)
    if config.task_id is None or (config.num_worker_replicas > 1 and not config.master):
        raise RuntimeError(
            "Could not start server; be sure to specify cluster_spec, task_type, task and master "
            "in RunConfig or set the TF_CONFIG environment variable."
        )
