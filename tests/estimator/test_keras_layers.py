"""Layers of both Keras in a model_fn."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1
import tf_keras

import tfdist.estimator as tfe
from tfdist.estimator import keras_version

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
    assert np.isfinite(estimator.evaluate(numbers(), steps=1)["loss"])


@pytest.mark.filterwarnings("ignore:`tf.layers:UserWarning")
def test_v1_layers_are_trained_with_their_updates_in_the_collection(
    numbers: Make, tmp_path: Path
) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
        output = v1.layers.batch_normalization(features["x"], training=True, momentum=0.5)
        loss = tf.reduce_mean(tf.square(v1.layers.dense(output, 3) - labels))
        updates = v1.get_collection(v1.GraphKeys.UPDATE_OPS)
        assert updates
        return _spec(mode, loss, v1.trainable_variables(), updates)

    estimator = tfe.Estimator(model_fn, tmp_path).train(numbers(), steps=1)
    names = estimator.get_variable_names()
    assert {"batch_normalization/moving_mean", "dense/kernel"} <= set(names)
    assert np.any(estimator.get_variable_value("batch_normalization/moving_mean") != 0.0)


def test_keras_3_layers_are_trained(numbers: Make, tmp_path: Path) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
        first = keras.layers.Dense(4, activation="relu", name="first")
        second = keras.layers.Dense(3, name="second")
        output = second(first(features["x"]))
        loss = tf.reduce_mean(tf.square(output - labels))
        weights = [*first.trainable_weights, *second.trainable_weights]
        return _spec(mode, loss, [weight.value for weight in weights])

    estimator = tfe.Estimator(model_fn, tmp_path).train(numbers(), steps=1)
    names = [n for n in estimator.get_variable_names() if n != "global_step"]
    assert len(names) == 4
    before = {n: estimator.get_variable_value(n) for n in names}
    estimator.train(numbers(), steps=2)
    for name in names:
        assert np.any(estimator.get_variable_value(name) != before[name]), name
    assert estimator.evaluate(numbers(), steps=1)["global_step"] == 3


def test_a_keras_2_model_is_trained(numbers: Make, tmp_path: Path) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
        model = tf_keras.Sequential(
            [tf_keras.layers.Dense(4, activation="relu"), tf_keras.layers.Dense(3)]
        )
        loss = tf.reduce_mean(tf_keras.losses.mean_squared_error(labels, model(features["x"])))
        return _spec(mode, loss, model.trainable_variables)

    estimator = tfe.Estimator(model_fn, tmp_path).train(numbers(), steps=2)
    assert estimator.evaluate(numbers(), steps=1)["global_step"] == 2


# Which Keras `tf.keras` is.


@pytest.fixture
def tensorflow_with(monkeypatch: pytest.MonkeyPatch) -> Callable[[str | None], None]:
    """Puts a TensorFlow in place of the real one whose `keras` looks like this; None: unloaded."""

    def tensorflow_with(shown: str | None) -> None:
        class Keras:
            def __repr__(self) -> str:
                return str(shown)

        monkeypatch.delenv("TF_USE_LEGACY_KERAS", raising=False)
        if shown is None:
            monkeypatch.delitem(sys.modules, "tensorflow")
        else:
            monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace(keras=Keras()))

    return tensorflow_with


@pytest.mark.parametrize("shown", [None, "<KerasLazyLoader>"])
def test_keras_2_is_chosen_before_tf_keras_is_touched(
    tensorflow_with: Make, monkeypatch: pytest.MonkeyPatch, shown: str | None
) -> None:
    tensorflow_with(shown)
    environ: dict[str, str] = {}
    monkeypatch.setattr("os.environ", environ)
    keras_version.choose()
    assert environ == {"TF_USE_LEGACY_KERAS": "1"}


def test_the_users_own_choice_stays(tensorflow_with: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    tensorflow_with("<KerasLazyLoader>")
    environ = {"TF_USE_LEGACY_KERAS": "0"}
    monkeypatch.setattr("os.environ", environ)
    keras_version.choose()
    assert environ == {"TF_USE_LEGACY_KERAS": "0"}


def test_keras_3_that_is_in_use_already_is_told(
    tensorflow_with: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensorflow_with("<module 'keras._tf_keras.keras' from 'keras'>")
    environ: dict[str, str] = {}
    monkeypatch.setattr("os.environ", environ)
    with pytest.warns(UserWarning, match="Set TF_USE_LEGACY_KERAS=1, or import tfdist.estimator"):
        keras_version.choose()
    assert environ == {}
