"""A model whose forward pass runs in a pipeline: outputs in the samples' order, shared weights."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from tfdist.pipeline import (
    Block,
    Options,
    PipelinedExecution,
    ShardedExecution,
    inference_model,
    training_model,
)

Quiet = Callable[..., Options]
TWO = PipelinedExecution("B1", "B2")


@pytest.mark.parametrize("strategy", [TWO, ShardedExecution("B1", "B2")])
def test_inference_sees_the_weights_as_training_leaves_them(
    layered: Any, quiet: Quiet, samples: Any, strategy: Any
) -> None:
    model = layered(2)
    options = quiet(strategy, gradient_accumulation=3)
    train = training_model(model, options, tf_keras.optimizers.SGD(0.5))
    predict = inference_model(model, options.clone().gradient_accumulation(1).device_iterations(4))
    inputs, labels = samples(12)
    before = None
    for _ in range(2):
        train(inputs, labels)
        found = predict(inputs).numpy()
        np.testing.assert_allclose(found, model(inputs), 0, 1e-6)
        assert before is None or (found != before).any()
        before = found


# Of 6 iterations x 2 replicas, 2 samples each.
OUTPUTS: dict[str, tuple[dict[str, Any], Callable[[np.ndarray], np.ndarray]]] = {
    "default": ({}, lambda x: x),
    "final": ({"mode": "final"}, lambda x: x[-2:]),
    "every_n": ({"mode": "every_n", "every": 3}, lambda x: x[[4, 5, 10, 11]]),
    "sum": ({"mode": "sum"}, lambda x: x.sum(0)),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs_are_in_the_order_of_the_samples(quiet: Quiet, name: str) -> None:
    mode, picked = OUTPUTS[name]

    def model(x: tf.Tensor) -> dict[str, tf.Tensor]:
        with Block("B1"):
            doubled = x * 2
        with Block("B2"):
            return {"doubled": doubled, "total": tf.reduce_sum(x)}

    options = quiet(TWO, device_iterations=6, replication_factor=2)
    if mode:
        options.output_mode(**mode)
    x = np.arange(24 * 3, dtype="float32").reshape(24, 3)
    found = inference_model(model, options)(x)
    by_micro_batch = x.reshape(12, 2, 3)
    np.testing.assert_allclose(found["doubled"], picked(by_micro_batch * 2).reshape(-1, 3))
    np.testing.assert_allclose(found["total"], picked(by_micro_batch.sum((1, 2))))


def test_dropout_and_batch_norm_do_as_in_inference(quiet: Quiet) -> None:
    norm = tf_keras.layers.BatchNormalization()
    model = tf_keras.Sequential([tf_keras.layers.Dropout(0.5), norm])

    def forward(x: tf.Tensor, training: Any = None) -> tf.Tensor:
        with Block("B1"):
            x = x * 1.0
        with Block("B2"):
            return model(x, training=training)

    x = np.random.default_rng(1).normal(size=(8, 3)).astype("float32")
    found = inference_model(forward, quiet(TWO, device_iterations=2))(x)
    np.testing.assert_allclose(found, x / np.sqrt(1 + norm.epsilon), 0, 1e-6)
    np.testing.assert_array_equal(norm.moving_mean, 0)
