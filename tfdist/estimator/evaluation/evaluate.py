"""Estimator.evaluate: metrics over an input, in one process."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1
from tensorflow.compat.v1.train import SessionRunContext, SessionRunValues

from tfdist.estimator.checkpoints.scaffold import checked
from tfdist.estimator.config.arguments import InputFn
from tfdist.estimator.config.run_config import RunConfig
from tfdist.estimator.evaluation.eval_events import write_results
from tfdist.estimator.evaluation.initial_weights import seeded_graph
from tfdist.estimator.graph import sessions
from tfdist.estimator.graph.precision import ModelPrecision
from tfdist.estimator.graph.replicas import each_replica, evaluation_strategy
from tfdist.estimator.graph.step import next_batches
from tfdist.estimator.inputs.batches import RunFirst, call_input_fn, make_input
from tfdist.estimator.spec import EstimatorSpec, ModeKeys, is_keras_metric
from tfdist.process.progress_file import in_phase
from tfdist.strategies.divided import pieces
from tfdist.strategies.divided.variable import DividedTableError
from tfdist.strategies.placement import HOST, place
from tfdist.strategies.saving.checkpoint_files import damage_named
from tfdist.training.precision import find_precision


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The graph of an evaluation, built once; it may be run several times.

    Attributes:
      graph: The graph in which it was built.
      scaffold: The model's scaffold, with a local_init_op for the metrics.
      input_hooks: Hooks that initialise the input, and give all replicas the same variables.
      model_hooks: The spec's evaluation_hooks.
      values: The metrics' values by name, with "loss" and "global_step".
      updates: One op for each replica, which updates the metrics with a batch.
      has_more: 1.0 while there is a batch for each replica; None if not known.
      is_enough: Whether there is a batch for each replica at the start.
      session_config: The config of the session.
    """

    graph: tf.Graph
    scaffold: v1.train.Scaffold
    input_hooks: Sequence[v1.train.SessionRunHook]
    model_hooks: Sequence[v1.train.SessionRunHook]
    values: dict[str, Any]
    updates: Sequence[tf.Operation]
    has_more: tf.Tensor | None
    is_enough: tf.Tensor | None
    session_config: v1.ConfigProto


def build_evaluation(
    *,
    model_fn: Callable[[Any, Any], EstimatorSpec],
    create_global_step: Callable[[tf.Graph], tf.Variable],
    input_fn: InputFn,
    params: dict[str, Any],
    config: RunConfig,
    is_untrained: bool,
    warm_start: Callable[[], None],
) -> Evaluation:
    """Builds the ops of an evaluation in a separate graph, in this process alone.

    It uses this process's devices, with any strategy for training. Several replicas take different
    batches; the metrics are over all batches.
    """
    strategy = evaluation_strategy(config)
    with tf.Graph().as_default() as graph, ExitStack() as stack:
        stack.enter_context(seeded_graph(config.tf_random_seed, is_untrained=is_untrained))
        placement = place(config.device.device)
        if strategy is not None:
            placement = strategy.extended.placement
            stack.enter_context(strategy.scope())
        global_step = create_global_step(graph)
        result = call_input_fn(
            input_fn, mode=ModeKeys.EVAL, params=params, config=config, input_context=None
        )
        replicas = placement.num_replicas
        inputs = make_input(result, look_ahead=replicas if replicas > 1 else None)
        batches = next_batches(inputs, replicas)
        precision = ModelPrecision(find_precision(config.device.precision), device=None)

        def build(replica: int) -> tuple[EstimatorSpec, dict[str, Any], tf.Operation]:
            features, labels, _ = batches[replica]
            spec = precision.call(model_fn, features, labels)
            with tf.device(None):
                metrics = _with_loss(metrics_of(spec), spec.loss)
            updates = (op for _, update in metrics.values() for op in tf.nest.flatten(update))
            return spec, metrics, tf.group(*updates)

        with precision.around_model():
            built = each_replica(strategy, placement)(build)
        specs, all_metrics, updates = zip(*built, strict=True)
        if is_untrained:
            warm_start()
        values = {name: value for name, (value, _) in all_metrics[0].items()}
        for variable in pieces.divided_in(graph):
            raise DividedTableError(
                f"{variable.division.name} would be divided between the workers that evaluate, "
                "and is restored by one. Give RunConfig no eval_distribute, or a strategy without "
                "variable_partitioner there."
            )
        share = None if strategy is None else strategy.extended.graph_variables.broadcast()
        stack.close()  # Savers are built outside the strategy's scope.
        return Evaluation(
            graph=graph,
            scaffold=_scaffold(specs[0]),
            input_hooks=[*inputs.hooks, *([] if share is None else [RunFirst(share)])],
            model_hooks=specs[0].evaluation_hooks,
            values={**values, "global_step": global_step},
            updates=updates,
            has_more=batches[-1][2],
            is_enough=inputs.is_enough,
            session_config=sessions.configured(placement, config),
        )


def run_evaluation(
    evaluation: Evaluation,
    *,
    master: str,
    steps: int | None,
    hooks: Sequence[v1.train.SessionRunHook],
    events_dir: str,
    checkpoint_path: str | None = None,
    init_fn: Callable[[v1.Session], None] | None = None,
) -> dict[str, Any]:
    """Opens a session, updates the metrics, and writes the results for TensorBoard.

    `steps` None evaluates the whole input. `init_fn` sets variables after their initialisation,
    given a session; it is not used with a checkpoint.

    Returns:
      Metrics by name, as numpy values, with "loss" (mean over the batches) and "global_step".
    """
    scaffold = evaluation.scaffold
    if init_fn is not None:
        scaffold = v1.train.Scaffold(
            init_fn=lambda _, session: init_fn(session), copy_from_scaffold=scaffold
        )
    final = v1.train.FinalOpsHook(evaluation.values)
    stop = _StopAfter(steps)
    started = time.time()
    v1.logging.info(
        "Starting evaluation at %s", time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime())
    )
    with evaluation.graph.as_default(), in_phase("evaluating"), damage_named(checkpoint_path):
        with v1.train.SingularMonitoredSession(
            hooks=[*evaluation.input_hooks, *hooks, *evaluation.model_hooks, stop, final],
            scaffold=checked(scaffold, checkpoint_path),
            master=master,
            config=evaluation.session_config,
            checkpoint_filename_with_path=checkpoint_path,
        ) as session:
            _run_updates(session, evaluation)
        v1.logging.info("Inference Time : %0.5fs", time.time() - started)
        v1.logging.info(
            "Finished evaluation at %s", time.strftime("%Y-%m-%d-%H:%M:%S", time.localtime())
        )
        results: dict[str, Any] = final.final_ops_values
        write_results(events_dir, results, checkpoint_path)
        return results


def _run_updates(session: v1.train.SingularMonitoredSession, evaluation: Evaluation) -> None:
    """Updates the metrics until the input ends, or a hook requests to stop.

    Several replicas run in step while there is a batch for each. When the remaining batches are too
    few for all replicas, the first replica takes them one after the other.
    """
    suffices = evaluation.is_enough is None or session.run_step_fn(
        lambda step_context: step_context.session.run(evaluation.is_enough)
    )
    while not session.should_stop():
        if evaluation.has_more is None or not suffices:
            session.run(evaluation.updates[0])
        else:
            _, suffices = session.run([evaluation.updates, evaluation.has_more])


def metrics_of(spec: EstimatorSpec) -> dict[str, Any]:
    """Returns the spec's metrics. Those of `eval_metrics` are built here, on the host."""
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
            raise ValueError(f"Metric with name `{name}` is not allowed: the Estimator adds it.")
    assert not any(is_keras_metric(m) for m in metrics.values())
    metrics = {**metrics, "loss": v1.metrics.mean(loss, name="mean_loss")}
    return dict(sorted(metrics.items()))  # The order in which results are returned and written.


def _scaffold(spec: EstimatorSpec) -> v1.train.Scaffold:
    """Returns a scaffold that runs the default local_init_op in addition to the spec's."""
    own = spec.scaffold.local_init_op
    if own is None:
        return spec.scaffold
    default = v1.train.Scaffold.default_local_init_op()
    return v1.train.Scaffold(local_init_op=tf.group(own, default), copy_from_scaffold=spec.scaffold)


class _StopAfter(v1.train.SessionRunHook):  # type: ignore[misc]
    """Stops after a number of steps, and logs the progress about ten times."""

    def __init__(self, steps: int | None) -> None:
        self._steps = steps
        self._done = 0
        self._every = max(1, round(steps / 10)) if steps else 0

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        self._done += 1
        if self._steps is None:
            return
        if self._done % self._every == 0 or self._done == self._steps:
            v1.logging.info("Evaluation [%d/%d]", self._done, self._steps)
        if self._done >= self._steps:
            run_context.request_stop()
