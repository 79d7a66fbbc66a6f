"""The model_fn: ResNet with its loss and its update, on one device or as a pipeline.

In each replica and each worker:

    device                                    host
    ------                                    ----
    images -> network -> loss, accuracy  -->  mean over all replicas  ->  log
    backward -> gradients                -->  mean over all replicas  ->  weights
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1
from architecture import Segment
from arguments import Settings
from datasets import Dataset, Images
from optimization import make_optimizer, make_schedule
from options import PRECISIONS
from plan import Plan
from resnet import Network

import tfdist.estimator as tfe
from tfdist.strategies import strategy_for_run

# Names of the metrics of a training, whose means over the whole step are logged.
LOSS, ACCURACY = "cross_entropy", "top_1_accuracy"

DTYPES = {"32": tf.float32, "16": tf.float16, "bf16": tf.bfloat16}


def make_estimator(settings: Settings, plan: Plan, dataset: Dataset, folder: Path) -> tfe.Estimator:
    """Returns the Estimator, with the strategy that fits how this process was started."""
    config = tfe.RunConfig(
        tf_random_seed=settings.seed,
        train_distribute=strategy_for_run(num_replicas=plan.layout.replicas),
        save_checkpoints_steps=plan.checkpoint_interval_steps,
        save_input=False,  # The input_fn begins at the step by itself.
        save_summary_steps=plan.log_interval_steps,
        keep_checkpoint_max=None,
        device=tfe.DeviceConfig(
            # A pipeline has its own.
            gradient_accumulation=plan.layout.accumulation if len(plan.stages) == 1 else 1,
            precision=PRECISIONS[settings.precision],
        ),
    )
    model_fn = make_model_fn(settings, plan, dataset.training)
    first_weights = settings.init_path and tfe.WarmStartSettings(settings.init_path)
    return tfe.Estimator(model_fn, str(folder), config, warm_start_from=first_weights)


def make_network(settings: Settings, segments: Sequence[Segment], *, is_training: bool) -> Network:
    """Returns the network that the options describe."""
    return Network(
        segments=segments,
        is_training=is_training,
        num_groups=settings.groups if settings.norm == "group" else None,
        span=settings.BN_span or None,
        decay=settings.BN_decay,
        recomputes=settings.enable_recomputation and not settings.pipeline,
        seed=settings.seed,
        dtype=DTYPES[settings.precision.partition(".")[0]],
    )


def make_model_fn(settings: Settings, plan: Plan, images: Images) -> Callable[..., Any]:
    """Returns the model_fn of a run; more than one stage of the plan makes a pipeline.

    The images say how bytes are normalised.
    """

    def model_fn(features: tf.Tensor, labels: tf.Tensor, mode: str) -> tfe.EstimatorSpec:
        is_training = mode == tfe.ModeKeys.TRAIN
        network = make_network(settings, plan.segments, is_training=is_training)
        if features.dtype == tf.uint8:
            features = images.normalise(features)
        logits = network(features)  # [batch, classes]
        if mode == tfe.ModeKeys.PREDICT:
            return tfe.EstimatorSpec(mode, predictions={"class": tf.argmax(logits, axis=-1)})
        loss = cross_entropy(settings, logits, labels)
        if not is_training:
            metrics = evaluate(logits, labels)
            return tfe.EstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)

        optimizer = make_optimizer(settings, make_schedule(settings, plan))
        gradients, variables = zip(*optimizer.compute_gradients(loss), strict=True)

        def update(*gradients: tf.Tensor) -> tf.Operation:
            # On the host. The optimizer takes the mean over all replicas of all workers.
            pairs = zip(gradients, variables, strict=True)
            moving_averages = v1.get_collection(v1.GraphKeys.UPDATE_OPS)
            return tf.group(optimizer.apply_gradients(pairs), *moving_averages)

        return tfe.EstimatorSpec(
            mode,
            loss=loss,
            host_call=(update, gradients),
            training_metrics={LOSS: loss, ACCURACY: share_right(logits, labels)},
        )

    def pipelined_model_fn(mode: str) -> tfe.PipelineEstimatorSpec:
        is_training = mode == tfe.ModeKeys.TRAIN
        network = make_network(settings, plan.segments, is_training=is_training)

        def make_stage(segments: Sequence[Segment]) -> Callable[..., Any]:
            def stage(hidden: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
                if hidden.dtype == tf.uint8:
                    hidden = images.normalise(hidden)
                return network.apply(segments, hidden), labels

            return stage

        def optimizer_function(logits: tf.Tensor, labels: tf.Tensor) -> tfe.OptimizerFunctionOutput:
            loss = cross_entropy(settings, logits, labels)
            return tfe.OptimizerFunctionOutput(
                make_optimizer(settings, make_schedule(settings, plan)),
                loss,
                metrics={LOSS: loss, ACCURACY: share_right(logits, labels)},
            )

        def eval_metrics_fn(logits: tf.Tensor, labels: tf.Tensor) -> dict[str, Any]:
            loss = cross_entropy(settings, logits, labels)
            return {"loss": loss, **evaluate(logits, labels)}

        return tfe.PipelineEstimatorSpec(
            mode=mode,
            computational_stages=[make_stage(segments) for segments in plan.stages],
            gradient_accumulation_count=plan.layout.accumulation,
            optimizer_function=optimizer_function,
            eval_metrics_fn=eval_metrics_fn,
            pipeline_schedule=settings.pipeline_schedule,
            recomputation=settings.enable_recomputation,
        )

    return model_fn if len(plan.stages) == 1 else pipelined_model_fn


def cross_entropy(settings: Settings, logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Returns the mean over the batch; a share of each label is divided among all classes."""
    classes = logits.shape[-1]
    smoothing = settings.label_smoothing
    targets = tf.one_hot(labels, classes) * (1 - smoothing) + smoothing / classes
    losses = tf.nn.softmax_cross_entropy_with_logits(targets, logits)  # [batch]
    return tf.reduce_mean(losses)


def share_right(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Returns the share of images whose class is found."""
    found = tf.argmax(logits, axis=-1, output_type=labels.dtype)  # [batch]
    return tf.reduce_mean(tf.cast(tf.equal(found, labels), tf.float32))


def evaluate(logits: tf.Tensor, labels: tf.Tensor) -> dict[str, Any]:
    """Returns the metrics of an evaluation."""
    found = tf.argmax(logits, axis=-1)  # [batch]
    top_5 = tf.cast(tf.math.in_top_k(labels, logits, min(5, logits.shape[-1])), tf.float32)
    return {
        "accuracy": v1.metrics.accuracy(labels, found),
        "top_5_accuracy": v1.metrics.mean(top_5),
    }
