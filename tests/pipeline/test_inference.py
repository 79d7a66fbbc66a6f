"""A model whose forward pass runs in a pipeline: shared weights, and layers that do not train."""

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
