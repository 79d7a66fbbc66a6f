"""Conversion of a PipelineEstimatorSpec and batches to the EstimatorSpecs of an ordinary step."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.estimator.config.run_config import RunConfig
from tfdist.estimator.pipelined.spec import PipelineEstimatorSpec, need_devices
from tfdist.estimator.pipelined.template import Template, call_stages, make_template
from tfdist.estimator.spec import EstimatorSpec, ModeKeys
from tfdist.pipeline.graph.cutting import StageFunctions, make_stages
from tfdist.pipeline.graph.execution import Replica, ReplicaResult, Weights, walk
from tfdist.pipeline.graph.gradients import add_gradients
from tfdist.pipeline.schedule import training_ticks
from tfdist.strategies.base import is_tfdist_strategy
from tfdist.strategies.placement import HOST, place
from tfdist.strategies.reductions.slices import scaled

_LOG_EVERY_S = 10.0


def build_model(
    spec: PipelineEstimatorSpec,
    features: Any,
    labels: Any,
    config: RunConfig,
    *,
    for_export: bool = False,
) -> EstimatorSpec:
    """Builds the model of the running replica, in the current graph.

    In TRAIN each tensor of the features and labels is [micro-batches, batch, ...]. Without a
    strategy the config has the first device. `for_export` binds no stage to a device, so that the
    graph runs on any machine.

    Raises:
      TypeError: If eval_metrics_fn or optimizer_function returns a value of a wrong type.
      ValueError: If the stages use tensors that they cannot use, or nothing is trained.
    """
    if for_export:
        return _for_export(spec, _arguments(features, labels))
    if spec.mode == ModeKeys.TRAIN:
        return build_replicas(spec, [(features, labels)], config)[0]
    return _without_pipeline(spec, _arguments(features, labels), _devices(spec, config))


def build_replicas(
    spec: PipelineEstimatorSpec, batches: Sequence[tuple[Any, Any]], config: RunConfig
) -> list[EstimatorSpec]:
    """Builds the models of several replicas in TRAIN, in the current graph.

    The stages are called once, in the context of the first of these replicas. All of them share
    the stages' functions, the weights and the optimizer.

    Arguments and errors are as in `build_model`; `batches` are the features and the labels of
    each replica. The first are those of the running replica.

    Returns:
      The EstimatorSpec of each replica: the loss and the gradients of its micro-batches.
    """
    _refuse_old_loops(config.device.iterations_per_loop)
    arguments = [_arguments(*batch) for batch in batches]
    devices = [_devices(spec, config, offset=i) for i in range(len(batches))]
    return _training(spec, arguments, devices)


def _arguments(features: Any, labels: Any) -> tuple[Any, ...]:
    return (features,) if labels is None else (features, labels)


def _devices(spec: PipelineEstimatorSpec, config: RunConfig, *, offset: int = 0) -> list[str]:
    """Returns the devices of the stages, `offset` replicas after the running one."""
    need_devices(spec.num_devices)
    strategy = tf.distribute.get_strategy()
    if is_tfdist_strategy(strategy):
        placement, running = strategy.extended.placement, strategy.extended.replica_in_worker()
    else:
        placement, running = place(config.device.device), 0
    placement = placement.with_devices(spec.num_devices)
    return [placement.device_of_stage(index, running + offset) for index in spec.devices]


def _refuse_old_loops(iterations: int) -> None:
    if iterations > 1 and not v1.control_flow_v2_enabled():
        raise ValueError(
            f"iterations_per_loop={iterations} with a pipeline needs TensorFlow's newer loops. "
            "Call tf.compat.v1.enable_control_flow_v2(), or set iterations_per_loop to 1."
        )


def _for_export(spec: PipelineEstimatorSpec, arguments: Sequence[Any]) -> EstimatorSpec:
    if spec.mode == ModeKeys.TRAIN:
        raise ValueError(
            "the training graph of a pipeline cannot be exported: it is bound to the devices of "
            "this machine. Export it in ModeKeys.PREDICT or EVAL."
        )
    return _without_pipeline(spec, arguments, [None] * len(spec.computational_stages))


def _without_pipeline(
    spec: PipelineEstimatorSpec, arguments: Sequence[Any], devices: Sequence[str | None]
) -> EstimatorSpec:
    outputs = call_stages(spec.computational_stages, arguments, devices)
    if spec.mode == ModeKeys.PREDICT:
        return _prediction(spec, outputs)
    return _evaluation(spec, outputs, devices[-1])


def _prediction(spec: PipelineEstimatorSpec, outputs: Sequence[Any]) -> EstimatorSpec:
    if len(outputs) != 1:
        raise ValueError(
            "the last computational stage must return exactly one prediction tensor, or a dict of "
            f"them, got {len(outputs)}."
        )
    return EstimatorSpec(
        spec.mode,
        predictions=outputs[0],
        prediction_hooks=spec.prediction_hooks,
        scaffold=spec.scaffold,
    )


def _evaluation(
    spec: PipelineEstimatorSpec, outputs: Sequence[Any], device: str | None
) -> EstimatorSpec:
    assert spec.eval_metrics_fn is not None
    with tf.device(device):
        metrics = spec.eval_metrics_fn(*outputs)
    if not isinstance(metrics, dict):
        raise TypeError(f"eval_metrics_fn must return a dict, got {metrics!r}.")
    if "loss" not in metrics:
        raise KeyError(
            f"the dict of eval_metrics_fn must contain 'loss', a tensor; it has {sorted(metrics)}."
        )
    return EstimatorSpec(
        spec.mode,
        loss=metrics["loss"],
        eval_metric_ops={name: one for name, one in metrics.items() if name != "loss"},
        evaluation_hooks=spec.evaluation_hooks,
        scaffold=spec.scaffold,
    )


def _training(
    spec: PipelineEstimatorSpec,
    arguments: Sequence[Sequence[Any]],
    devices: Sequence[Sequence[str]],
) -> list[EstimatorSpec]:
    """Builds the pipelines of replicas.

    For each replica, `arguments` has those of its first stage, [micro-batches, batch, ...], and
    `devices` the device of each stage.
    """
    count = spec.gradient_accumulation_count
    assert count is not None
    micro_batches = [_micro_batches(argument, count) for argument in arguments]
    first = tf.nest.pack_sequence_as(tuple(arguments[0]), micro_batches[0][0])
    template = make_template(spec, first, devices[0])
    stages = make_stages(
        template.traced, add_gradients(template.traced), recomputation=spec.recomputation
    )
    names = [t.name for t in template.traced.arguments]
    results = walk(
        stages,
        training_ticks(spec.pipeline_schedule, len(stages), count),
        [
            Replica(
                devices=tuple(devices[replica]),
                micro_batches=[
                    {**dict(zip(names, batch, strict=True)), **template.handles_of(replica)}
                    for batch in micro_batches[replica]
                ],
            )
            for replica in range(len(arguments))
        ],
        weights=Weights(lambda handle: handle),
        captured=_given(template, stages),
        outputs=template.traced.outputs,
        one_at_a_time=spec.pipeline_schedule == "sequential",
        progress=_logged_progress(count),
    )
    if not results[0].gradients:
        raise ValueError(
            "no variable of the pipeline gets a gradient. Let the loss depend on a trainable "
            "variable that a stage makes."
        )
    return [_training_spec(spec, template, result) for result in results]


def _logged_progress(count: int) -> Callable[[float], None]:
    """Returns a function that logs the share of a step that is in the graph, every 10 s."""
    start_s = logged_s = time.monotonic()

    def progress(share: float) -> None:
        nonlocal logged_s
        now_s = time.monotonic()
        if now_s - logged_s >= _LOG_EVERY_S:
            logged_s = now_s
            left_s = (now_s - start_s) * (1 - share) / share
            v1.logging.info(
                f"Building the graph of {count:,} micro-batches: {share:.0%}, "
                f"about {left_s:.0f} s left."
            )

    return progress


def _micro_batches(arguments: Sequence[Any], count: int) -> list[tuple[tf.Tensor, ...]]:
    """Returns the flat arguments of each micro-batch, [batch, ...] each."""
    with tf.device(HOST):
        parts = [tf.unstack(t, num=count) for t in tf.nest.flatten(arguments)]
    return list(zip(*parts, strict=True))


def _training_spec(
    spec: PipelineEstimatorSpec, template: Template, result: ReplicaResult
) -> EstimatorSpec:
    """Returns the EstimatorSpec of a replica, whose values are means over its micro-batches."""
    is_weighted = template.traced.weight is not None
    count, replicas = len(result.outputs), tf.distribute.get_strategy().num_replicas_in_sync
    values = list(zip(*result.outputs, strict=True))  # One scalar for each micro-batch.
    with tf.device(HOST):
        weights = _checked_weights(values.pop(1)) if is_weighted else None  # [micro-batches]
        total = None if weights is None else tf.reduce_sum(weights)  # []
        loss, *metrics = (_mean(of_all, weights) for of_all in values)  # [] each
        if total is not None:
            # In float64 for gradients in float64; [].
            share = tf.constant(1.0 / replicas, tf.float64)
            scale = tf.math.divide_no_nan(share, tf.cast(total, tf.float64))
        else:
            scale = 1.0 / replicas / (count if spec.reduction_method == "mean" else 1)
    variables = [template.traced.trained[name] for name in result.gradients]
    gradients = [_scaled_in_place(gradient, scale) for gradient in result.gradients.values()]

    def apply(*on_host: Any) -> Any:
        return template.optimizer.apply_gradients(zip(on_host, variables, strict=True))

    return EstimatorSpec(
        spec.mode,
        loss=loss,
        host_call=(apply, gradients),
        training_chief_hooks=spec.training_chief_hooks,
        training_hooks=spec.training_hooks,
        scaffold=spec.scaffold,
        loss_weight=total,
        training_metrics=dict(zip(template.metrics, metrics, strict=True)),
    )


def _checked_weights(weights: Sequence[tf.Tensor]) -> tf.Tensor:
    """Stacks the loss weights of micro-batches; a step fails where one is negative or NaN."""
    stacked = tf.stack(weights)  # [micro-batches]
    is_valid = v1.assert_non_negative(stacked, message="loss_weight must not be negative.")
    with tf.control_dependencies([is_valid]):
        return tf.identity(stacked)


def _mean(values: Sequence[tf.Tensor], weights: tf.Tensor | None) -> tf.Tensor:
    """Returns the mean of scalars by their weights; one of weight 0 may be NaN."""
    values = [tf.cast(value, tf.float32) for value in values]
    if weights is None:
        return tf.add_n(values) / float(len(values))
    shares = tf.math.multiply_no_nan(tf.stack(values), weights)  # [micro-batches]
    return tf.math.divide_no_nan(tf.reduce_sum(shares), tf.reduce_sum(weights))


def _scaled_in_place(gradient: Any, factor: float | tf.Tensor) -> Any:
    """Multiplies a gradient on the device that has it."""
    with tf.device(gradient.device):
        return scaled(gradient, factor)


def _given(template: Template, stages: Sequence[StageFunctions]) -> dict[str, tf.Tensor]:
    """Returns handles and placeholders that the pipeline takes unchanged from the outer graph."""
    known = {t.name for t in template.traced.arguments}
    return {
        tensor.name: tensor
        for stage in stages
        for piece in (stage.forward, *([stage.backward.piece] if stage.backward else []))
        for tensor in piece.inputs
        if tensor.op.type in ("Placeholder", "VarHandleOp") and tensor.name not in known
    }
