"""Estimator.evaluate: metrics over an input, in one process."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.estimator import sessions
from tfdist.estimator.batches import call_input_fn, make_input
from tfdist.estimator.global_step import create_global_step
from tfdist.estimator.run_config import RunConfig
from tfdist.estimator.spec import EstimatorSpec, ModeKeys, is_keras_metric
from tfdist.strategies.placement import HOST, place


def evaluate(
    *,
    model_fn: Callable[[Any, Any], EstimatorSpec],
    input_fn: Callable[..., Any],
    params: dict[str, Any],
    config: RunConfig,
    steps: int | None,
    hooks: Sequence[v1.train.SessionRunHook],
    checkpoint_path: str | None,
    events_dir: str,
    warm_start: Callable[[], None],
) -> dict[str, Any]:
    """Evaluates a checkpoint; without one, the freshly initialised model.

    Runs in this process alone, on its device, whatever the strategy for training is.

    Returns:
      Metrics by name, as numpy values, with "loss" (mean over the steps) and "global_step".
    """
    with tf.Graph().as_default():
        v1.set_random_seed(config.tf_random_seed)
        placement = place(config.device.device)
        global_step = create_global_step()
        result = call_input_fn(
            input_fn, mode=ModeKeys.EVAL, params=params, config=config, input_context=None
        )
        inputs = make_input(result)
        features, labels, _ = inputs.next_batch()
        with placement.on_device():
            spec = model_fn(features, labels)
        if checkpoint_path is None:
            warm_start()
        metrics = _with_loss(_metrics(spec), spec.loss)
        values = {name: value for name, (value, _) in metrics.items()}
        values["global_step"] = global_step
        updates = tf.group(
            *(op for _, update in metrics.values() for op in tf.nest.flatten(update))
        )
        final = v1.train.FinalOpsHook(values)
        stop = _StopAfter(steps)
        started = time.time()
        v1.logging.info(
            "Starting evaluation at %s", time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime())
        )
        scaffold = _scaffold(spec)
        with v1.train.SingularMonitoredSession(
            hooks=[*inputs.hooks, *hooks, *spec.evaluation_hooks, stop, final],
            scaffold=scaffold,
            master=config.evaluation_master,
            config=placement.configure(sessions.with_defaults(config.session_config)),
            checkpoint_filename_with_path=checkpoint_path,
        ) as session:
            while not session.should_stop():
                session.run(updates)
        v1.logging.info("Inference Time : %0.5fs", time.time() - started)
        v1.logging.info(
            "Finished evaluation at %s", time.strftime("%Y-%m-%d-%H:%M:%S", time.localtime())
        )
        results: dict[str, Any] = final.final_ops_values
        _write_events(events_dir, results, checkpoint_path)
        return results


def _metrics(spec: EstimatorSpec) -> dict[str, Any]:
    """Returns the spec's metrics; those of `eval_metrics` are built here, on the host."""
    if spec.eval_metrics is None:
        return dict(spec.eval_metric_ops)
    if spec.eval_metric_ops:
        raise ValueError("EstimatorSpec cannot contain both eval_metric_ops and eval_metrics.")
    function, tensors = spec.eval_metrics
    with tf.device(HOST):
        if isinstance(tensors, dict):
            metrics = function(**{name: tf.identity(t) for name, t in tensors.items()})
        else:
            metrics = function(*(tf.identity(t) for t in tensors))
    if not isinstance(metrics, dict):
        raise TypeError(
            f"The function of eval_metrics must return a dict of metrics, got {metrics!r}."
        )
    checked: dict[str, Any] = EstimatorSpec(
        ModeKeys.EVAL, loss=spec.loss, eval_metric_ops=metrics
    ).eval_metric_ops
    return checked


def _with_loss(metrics: dict[str, Any], loss: tf.Tensor) -> dict[str, Any]:
    for name in ("loss", "global_step"):
        if name in metrics:
            raise ValueError(f"Metric with name {name!r} is not allowed: the Estimator adds it.")
    assert not any(is_keras_metric(m) for m in metrics.values())
    return {**metrics, "loss": v1.metrics.mean(loss, name="mean_loss")}


def _scaffold(spec: EstimatorSpec) -> v1.train.Scaffold:
    """Runs the spec's own local_init_op beside the default one."""
    own = spec.scaffold.local_init_op
    if own is None:
        return spec.scaffold
    default = v1.train.Scaffold.default_local_init_op()
    return v1.train.Scaffold(local_init_op=tf.group(own, default), copy_from_scaffold=spec.scaffold)


class _StopAfter(v1.train.SessionRunHook):  # type: ignore[misc]
    """Stops after a number of steps and logs about ten times on the way."""

    def __init__(self, steps: int | None) -> None:
        self._steps = steps
        self._done = 0
        self._every = max(1, round(steps / 10)) if steps else 0

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self._done += 1
        if self._steps is None:
            return
        if self._done % self._every == 0 or self._done == self._steps:
            v1.logging.info("Evaluation [%d/%d]", self._done, self._steps)
        if self._done >= self._steps:
            run_context.request_stop()


def _write_events(folder: str, results: dict[str, Any], checkpoint_path: str | None) -> None:
    """Writes the results for TensorBoard at the evaluated step, and logs them."""
    step = int(results["global_step"])
    shown = ", ".join(f"{name} = {value}" for name, value in sorted(results.items()))
    v1.logging.info("Saving dict for global step %d: %s", step, shown)
    summary = v1.Summary()
    for name, value in results.items():
        if name != "global_step" and value is not None:
            _add_value(summary, name, value)
    with v1.summary.FileWriter(folder) as writer:
        writer.add_summary(summary, step)
        if checkpoint_path:
            path = v1.Summary()
            path.value.add(
                tag="checkpoint_path",
                tensor=tf.make_tensor_proto(checkpoint_path, dtype=tf.string, shape=[]),
                metadata=v1.SummaryMetadata(data_class=3),  # DATA_CLASS_BLOB_SEQUENCE is 3.
            )
            v1.logging.info(
                "Saving 'checkpoint_path' summary for global step %d: %s", step, checkpoint_path
            )
            writer.add_summary(path, step)


def _add_value(summary: v1.Summary, name: str, value: Any) -> None:
    if isinstance(value, (np.floating, np.integer, float, int)):
        summary.value.add(tag=name, simple_value=float(value))
    elif isinstance(value, np.ndarray) and value.dtype.kind in "fiu":
        summary.value.add(tag=name, tensor=tf.make_tensor_proto(value))
    elif isinstance(value, bytes):
        parsed = v1.Summary()
        try:
            parsed.ParseFromString(value)
        except Exception:
            v1.logging.warning("Skipping summary for %s, cannot parse string to Summary.", name)
            return
        for i, part in enumerate(parsed.value):
            part.tag = f"{name}/{i}"
            summary.value.add().CopyFrom(part)
    else:
        v1.logging.warning(
            "Skipping summary for %s, must be a float, np.float32, np.int64, np.int32 or int or "
            "np.ndarray or a serialized string of Summary.",
            name,
        )
