"""Conversion of a PipelineEstimatorSpec and a batch to the EstimatorSpec of an ordinary step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.estimator.pipelined.spec import PipelineEstimatorSpec, need_devices
from tfdist.estimator.pipelined.template import Template, call_stages, make_template
from tfdist.estimator.run_config import RunConfig, is_own
from tfdist.estimator.spec import EstimatorSpec, ModeKeys
from tfdist.pipeline.graph.cutting import StageFunctions, make_stages
from tfdist.pipeline.graph.execution import Replica, Weights, walk
from tfdist.pipeline.graph.gradients import add_gradients, scaled
from tfdist.pipeline.schedule import training_ticks
from tfdist.strategies.placement import HOST, Placement, place


def build_model(
    spec: PipelineEstimatorSpec,
    features: Any,
    labels: Any,
    config: RunConfig,
    *,
    for_export: bool = False,
) -> EstimatorSpec:
    """Builds the model in the current graph.

    Args:
      spec: The stages.
      features: The features of the input; in TRAIN each tensor is [micro-batches, batch, ...].
      labels: The labels, with the same shapes; None without labels.
      config: The Estimator's config, which has the first device if there is no strategy.
      for_export: Whether no stage is bound to a device, so that the graph runs on any machine.

    Raises:
      TypeError: If eval_metrics_fn or optimizer_function returns a value of a wrong type.
      ValueError: If the stages use tensors that they cannot use, or nothing is trained.
    """
    arguments = (features,) if labels is None else (features, labels)
    if for_export:
        return _for_export(spec, arguments)
    placement = _placement(config)
    if placement.num_replicas > 1:
        raise ValueError(
            "a pipeline has one replica in each worker, got num_replicas="
            f"{placement.num_replicas}. Start more workers instead."
        )
    need_devices(spec.num_devices)
    devices = [placement.device_of_stage(index) for index in spec.devices]
    if spec.mode == ModeKeys.TRAIN:
        _refuse_old_loops(config.device.iterations_per_loop)
        return _training(spec, arguments, devices)
    return _without_pipeline(spec, arguments, devices)


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


def _placement(config: RunConfig) -> Placement:
    strategy = tf.distribute.get_strategy()
    if is_own(strategy):
        return strategy.extended.placement
    return place(config.device.device)


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
    spec: PipelineEstimatorSpec, arguments: Sequence[Any], devices: Sequence[str]
) -> EstimatorSpec:
    count = spec.gradient_accumulation_count
    assert count is not None
    with tf.device(HOST):
        parts = [tf.unstack(t, num=count) for t in tf.nest.flatten(arguments)]
    micro_batches = list(zip(*parts, strict=True))
    first = tf.nest.pack_sequence_as(tuple(arguments), micro_batches[0])
    template = make_template(spec, first, devices)
    stages = make_stages(
        template.traced, add_gradients(template.traced), recomputation=spec.recomputation
    )
    names = [t.name for t in template.traced.arguments]
    (walked,) = walk(
        stages,
        training_ticks(spec.pipeline_schedule, len(stages), count),
        [
            Replica(
                devices=tuple(devices),
                micro_batches=[dict(zip(names, one, strict=True)) for one in micro_batches],
            )
        ],
        weights=Weights(lambda handle: handle),
        captured=_given(template, stages),
        outputs=[template.loss],
        one_at_a_time=spec.pipeline_schedule == "sequential",
    )
    if not walked.gradients:
        raise ValueError(
            "no variable of the pipeline gets a gradient. Let the loss depend on a trainable "
            "variable that a stage makes."
        )
    workers = tf.distribute.get_strategy().num_replicas_in_sync
    scale = 1.0 / workers / (count if spec.reduction_method == "mean" else 1)
    variables = [template.traced.trained[name] for name in walked.gradients]
    gradients = [_scaled_in_place(gradient, scale) for gradient in walked.gradients.values()]

    def apply(*on_host: Any) -> Any:
        return template.optimizer.apply_gradients(zip(on_host, variables, strict=True))

    with tf.device(HOST):
        loss = tf.add_n([tf.cast(one[0], tf.float32) for one in walked.outputs]) / float(count)
    return EstimatorSpec(
        spec.mode,
        loss=loss,
        host_call=(apply, gradients),
        training_chief_hooks=spec.training_chief_hooks,
        training_hooks=spec.training_hooks,
        scaffold=spec.scaffold,
    )


def _scaled_in_place(gradient: Any, factor: float) -> Any:
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
