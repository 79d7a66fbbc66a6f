"""A classifier of three stages as a pipeline and on one device, and examples for it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1
import tf_keras

import tfdist.estimator as tfe
from tfdist.estimator import OptimizerFunctionOutput, PipelineEstimatorSpec
from tfdist.training import LAMB, ClippedOptimizer, DynamicLossScale, LossScaleOptimizer, warmup
from tfdist.training.wrappers.optimizer_wrapper import loss_to_differentiate

COUNT, MICRO, STEPS = 6, 4, 3  # Micro-batches in a step, examples in one, and steps.

random = np.random.RandomState(0)
X = random.randn(COUNT * MICRO * STEPS, 5).astype(np.float32)
WORDS = random.randint(0, 9, (COUNT * MICRO * STEPS, 2)).astype(np.int32)
Y = random.randint(0, 3, COUNT * MICRO * STEPS)

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: v1.train.GradientDescentOptimizer(0.1),
    "momentum": lambda: v1.train.MomentumOptimizer(0.1, 0.9),
    "adam": lambda: v1.train.AdamOptimizer(0.01),
    "keras": lambda: tf_keras.optimizers.legacy.Adam(0.01),
    "lamb": lambda: ClippedOptimizer(LAMB(warmup(0.1, 2), weight_decay=0.1), global_norm=0.1),
    "scaled": lambda: LossScaleOptimizer(LAMB(0.1), DynamicLossScale(growth_steps=2)),
}


def batches(batch: int, data: Any = (X, Y)) -> Callable[[], tf.data.Dataset]:
    """Returns an input_fn of full batches of the examples."""
    return lambda: tf.data.Dataset.from_tensor_slices(data).batch(batch, drop_remainder=True)


def make_weights(name: str, shape: Sequence[int]) -> Any:
    """Makes a variable whose values depend on its name and shape alone."""
    values = np.random.RandomState(len(name)).randn(*shape).astype(np.float32) / 2
    return v1.get_variable(name, initializer=values)


def first_stage(x: Any, y: Any = 0) -> Any:
    """Maps [micro_batch, 5] to [micro_batch, 4]."""
    return tf.nn.relu(tf.matmul(x, make_weights("first", [5, 4]))), y


def second_stage(x: Any, y: Any = 0) -> Any:
    """Maps [micro_batch, 4] to [micro_batch, 4], named "hidden", with a summary."""
    hidden = tf.nn.tanh(tf.matmul(x, make_weights("second_", [4, 4])) + make_weights("bias", [4]))
    v1.summary.scalar("mean_of_hidden", tf.reduce_mean(hidden))
    return tf.identity(hidden, name="hidden"), y


def third_stage(x: Any, y: Any = 0) -> Any:
    """Maps [micro_batch, 4] to the logits, [micro_batch, 3]."""
    return tf.matmul(x, make_weights("third_one", [4, 3])), y


STAGES = [first_stage, second_stage, third_stage]


def mean_loss(logits: Any, labels: Any) -> Any:
    """Returns the mean cross-entropy of a micro-batch, []."""
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    return tf.reduce_mean(losses)


def mean_metrics(logits: Any, labels: Any) -> dict[str, Any]:
    """Returns the metrics of an evaluation."""
    accuracy = v1.metrics.accuracy(labels, tf.argmax(logits, 1))
    return {"loss": mean_loss(logits, labels), "accuracy": accuracy}


def make_pipelined(
    stages: Sequence[Callable[..., Any]] = STAGES, optimizer: str = "sgd", **options: Any
) -> Callable[..., PipelineEstimatorSpec]:
    """Returns a model_fn of a pipeline; `options` replace fields of its spec."""

    def model_fn(mode: str) -> PipelineEstimatorSpec:
        computed = stages
        if mode == tfe.ModeKeys.PREDICT:
            computed = [*stages[:-1], lambda *args: stages[-1](*args)[0]]
        settings = {
            "computational_stages": computed,
            "gradient_accumulation_count": COUNT,
            "optimizer_function": lambda *outputs: OptimizerFunctionOutput(
                OPTIMIZERS[optimizer](), mean_loss(*outputs)
            ),
            "eval_metrics_fn": mean_metrics,
        }
        return PipelineEstimatorSpec(mode=mode, **{**settings, **options})

    return model_fn


def make_plain(
    stages: Sequence[Callable[..., Any]] = STAGES, optimizer: str = "sgd", factor: float = 1.0
) -> Callable[..., tfe.EstimatorSpec]:
    """Returns a model_fn of the same model on one device, with all micro-batches of a step."""

    def model_fn(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
        arguments: Any = (features, labels)
        for stage in stages:
            arguments = stage(*arguments)
        logits, labels = arguments
        loss = mean_loss(logits, labels)
        variables, chosen = v1.trainable_variables(), OPTIMIZERS[optimizer]()
        gradients = tf.gradients(loss_to_differentiate(chosen, loss * factor), variables)

        def apply(*on_host: Any) -> Any:
            return chosen.apply_gradients(zip(on_host, variables, strict=True))

        metrics = {"accuracy": v1.metrics.accuracy(labels, tf.argmax(logits, 1))}
        return tfe.EstimatorSpec(
            mode, loss=loss, host_call=(apply, gradients), eval_metric_ops=metrics
        )

    return model_fn


def make_estimator(
    model_fn: Any, folder: Path, *, loops: int = 1, replicas: int = 1, **settings: Any
) -> tfe.Estimator:
    """Makes an Estimator that saves at its end only, and writes the summaries of every step."""
    on_host = settings.pop("variables_on_host", True)
    device = tfe.DeviceConfig(
        iterations_per_loop=loops, variables_on_host=on_host, num_replicas=replicas
    )
    config = tfe.RunConfig(
        device=device, save_checkpoints_steps=1000, save_summary_steps=1, **settings
    )
    return tfe.Estimator(model_fn, folder, config)


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Compares values of equal names."""
    assert one.keys() == other.keys()
    for name, value in one.items():
        np.testing.assert_allclose(value, other[name], atol=1e-6, err_msg=name)


def as_trained(model_fn: Any, trained: tfe.Estimator, replicas: int = 1) -> tfe.Estimator:
    """Makes an Estimator with the checkpoint of another one."""
    config = tfe.RunConfig(device=tfe.DeviceConfig(num_replicas=replicas))
    return tfe.Estimator(model_fn, trained.model_dir, config)
