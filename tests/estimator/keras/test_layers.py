"""Layers of both Keras in a model_fn."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1
import tf_keras

import tfdist.estimator as tfe

Make = Callable[..., Any]


def test_tf_keras_is_keras_2() -> None:
    assert tf.keras.layers.Layer is tf_keras.layers.Layer
    assert tf.keras.layers.Layer is not keras.layers.Layer


def _spec(mode: str, loss: tf.Tensor, variables: Any, updates: Any = ()) -> tfe.EstimatorSpec:
    """Plain gradient descent by host_call, after the layers' own updates."""
    if mode != tfe.ModeKeys.TRAIN:
        return tfe.EstimatorSpec(mode, loss=loss)
    optimizer = v1.train.GradientDescentOptimizer(0.1)
    gradients = [gradient for gradient, _ in optimizer.compute_gradients(loss, variables)]

    def update(*gradients: tf.Tensor) -> tf.Operation:
        with tf.control_dependencies(updates):
            return optimizer.apply_gradients(zip(gradients, variables, strict=True))

    return tfe.EstimatorSpec(mode, loss=loss, host_call=(update, gradients))


def _norm_model(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
    is_training = mode == tfe.ModeKeys.TRAIN
    norm = tf_keras.layers.BatchNormalization(momentum=0.5, name="norm")
    dense = tf_keras.layers.Dense(3, name="dense")
    output = dense(norm(features["x"], training=is_training))
    loss = tf.reduce_mean(tf.square(output - labels))
    variables = [*norm.trainable_variables, *dense.trainable_variables]
    return _spec(mode, loss, variables, norm.updates)


@pytest.mark.parametrize("iterations", [1, 2])
def test_keras_2_batch_norm_is_trained_and_its_averages_move(
    numbers: Make, tmp_path: Path, iterations: int
) -> None:
    config = tfe.RunConfig(device=tfe.DeviceConfig(iterations_per_loop=iterations))
    estimator = tfe.Estimator(_norm_model, tmp_path, config).train(numbers(), steps=2)
    batches = np.random.RandomState(0).randn(64, 2).astype(np.float32)[:8].reshape(2, 4, 2)
    mean = np.zeros(2)
    for batch in batches:
        mean = 0.5 * mean + 0.5 * batch.mean(axis=0)
    np.testing.assert_allclose(estimator.get_variable_value("norm/moving_mean"), mean, rtol=1e-5)
    assert np.any(estimator.get_variable_value("norm/gamma") != 1.0)
    assert np.isfinite(estimator.evaluate(numbers(), steps=2)["loss"])


def test_keras_3_layers_without_a_name_are_trained_and_called_the_same_each_time(
    numbers: Make, weights: Make, tmp_path: Path
) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
        first, second = keras.layers.Dense(4, activation="relu"), keras.layers.Dense(3)
        loss = tf.reduce_mean(tf.square(second(first(features["x"])) - labels))
        trained = [*first.trainable_weights, *second.trainable_weights]
        return _spec(mode, loss, [weight.value for weight in trained])

    estimator = tfe.Estimator(model_fn, tmp_path).train(numbers(), steps=1)
    before = weights(estimator)
    after = weights(estimator.train(numbers(), steps=2))
    assert len(before) == 5 and before.keys() == after.keys()
    assert all(np.any(after[name] != value) for name, value in before.items())
    assert estimator.evaluate(numbers(), steps=1)["global_step"] == 3


# As programs for tf.estimator wrote it. The numbers were computed with tf.estimator 2.15.

FLAT = np.random.RandomState(0).randn(32, 2).astype(np.float32)
IMAGES = np.random.RandomState(0).randn(32, 4, 4, 1).astype(np.float32)
LABELS = np.random.RandomState(1).randn(32, 1).astype(np.float32)


def _input(features: Any) -> Callable[[], tf.data.Dataset]:
    def input_fn() -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices((features, LABELS)).batch(8).repeat(4)

    return input_fn


def _by_get_updates(loss: tf.Tensor, variables: Any, updates: Any) -> tf.Operation:
    optimizer = tf_keras.optimizers.legacy.Adam(0.1)
    optimizer.iterations = v1.train.get_or_create_global_step()
    return tf.group(*optimizer.get_updates(loss, variables), *updates)


def _by_apply_gradients(loss: tf.Tensor, variables: Any, updates: Any) -> tf.Operation:
    optimizer = tf_keras.optimizers.legacy.Adam(0.1)
    optimizer.iterations = v1.train.get_or_create_global_step()
    with tf.control_dependencies(updates):
        pairs = zip(v1.gradients(loss, variables), variables, strict=True)
        return optimizer.apply_gradients(pairs)


def _by_counting_apart(loss: tf.Tensor, variables: Any, updates: Any) -> tf.Operation:
    optimizer = tf_keras.optimizers.legacy.Adam(0.1)
    train = optimizer.get_updates(loss, variables)
    return tf.group(*train, *updates, v1.assign_add(v1.train.get_global_step(), 1))


@pytest.mark.parametrize("train", [_by_get_updates, _by_apply_gradients, _by_counting_apart])
def test_a_keras_2_optimizer_trains_as_train_op(tmp_path: Path, train: Make) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
        is_training = mode == tfe.ModeKeys.TRAIN
        constant, l2 = tf_keras.initializers.Constant, tf_keras.regularizers.l2(0.1)
        model = tf_keras.Sequential(
            [
                tf_keras.layers.Dense(4, kernel_initializer=constant(0.3), kernel_regularizer=l2),
                tf_keras.layers.BatchNormalization(momentum=0.5, name="norm"),
                tf_keras.layers.Dense(1, kernel_initializer=constant(0.2)),
            ]
        )
        output = model(features["x"], training=is_training)
        loss = tf.reduce_mean(tf.square(output - labels)) + tf.add_n(model.losses)
        if not is_training:
            return tfe.EstimatorSpec(mode, loss=loss)
        updates = model.get_updates_for(None) + model.get_updates_for(features["x"])
        train_op = train(loss, model.trainable_variables, updates)
        return tfe.EstimatorSpec(mode, loss=loss, train_op=train_op)

    estimator = tfe.Estimator(model_fn, tmp_path).train(_input({"x": FLAT}), steps=5)
    result = estimator.evaluate(_input({"x": FLAT}), steps=4)
    assert result == {"loss": pytest.approx(1.2199607, abs=1e-5), "global_step": 5}
    mean = estimator.get_variable_value("sequential/norm/moving_mean")
    np.testing.assert_allclose(mean, np.full(4, 0.09390335), atol=1e-5)


@pytest.mark.filterwarnings("ignore:`tf.layers:UserWarning")
def test_a_model_of_v1_layers_trains_with_its_collections(tmp_path: Path) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
        is_training = mode == tfe.ModeKeys.TRAIN
        constant, l2 = v1.constant_initializer, tf.keras.regularizers.l2(0.1)
        output = v1.layers.conv2d(
            features,
            filters=3,
            kernel_size=3,
            activation=tf.nn.relu,
            kernel_initializer=constant(0.1),
            kernel_regularizer=l2,
        )
        output = v1.layers.batch_normalization(output, training=is_training, momentum=0.5)
        output = v1.layers.flatten(v1.layers.max_pooling2d(output, 2, 2))
        output = v1.layers.dropout(output, 0.0, training=is_training)
        output = v1.layers.dense(output, 1, kernel_initializer=constant(0.2), kernel_regularizer=l2)
        loss = v1.losses.mean_squared_error(labels, output) + v1.losses.get_regularization_loss()
        if not is_training:
            return tfe.EstimatorSpec(mode, loss=loss)
        with tf.control_dependencies(v1.get_collection(v1.GraphKeys.UPDATE_OPS)):
            step = v1.train.get_global_step()
            train_op = v1.train.GradientDescentOptimizer(0.05).minimize(loss, step)
        return tfe.EstimatorSpec(mode, loss=loss, train_op=train_op)

    estimator = tfe.Estimator(model_fn, tmp_path).train(_input(IMAGES), steps=5)
    result = estimator.evaluate(_input(IMAGES), steps=4)
    assert result == {"loss": pytest.approx(0.9798661, abs=1e-5), "global_step": 5}
    sums = {name: estimator.get_variable_value(name).sum() for name in ("conv2d/kernel",)}
    assert sums == {"conv2d/kernel": pytest.approx(2.47068, abs=1e-4)}
