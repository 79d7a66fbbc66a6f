"""Compiled Keras models as Estimators."""

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
from tfdist.estimator.keras.model_fn import named_metrics, weights_of_outputs

Make = Callable[..., Any]
X = np.random.RandomState(0).randn(32, 2).astype(np.float32)
Y = np.random.RandomState(1).randn(32, 1).astype(np.float32)
BINARY = (Y > 0).astype(np.float32)


def _input(features: Any, labels: Any = Y) -> Callable[[], tf.data.Dataset]:
    def input_fn() -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices((features, labels)).batch(8).repeat(4)

    return input_fn


def _same() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensors((X[:8], Y[:8])).repeat()


def _constant(value: float) -> Any:
    return tf_keras.initializers.Constant(value)


def _dense(units: int, weight: float, **more: Any) -> Any:
    return tf_keras.layers.Dense(units, kernel_initializer=_constant(weight), **more)


def _sequential(optimizer: Any = "sgd", **compiled: Any) -> Any:
    layers = [_dense(4, 0.3, activation="tanh", input_shape=(2,), name="a"), _dense(1, 0.2)]
    layers[1]._name = "b"
    model = tf_keras.Sequential(layers)
    model.compile(optimizer, "mse", metrics=["mae"], **compiled)
    return model


def _functional(optimizer: Any = "adam") -> Any:
    """Batch norm, a regularised kernel, two metrics."""
    x = tf_keras.Input((2,), name="x")
    hidden = _dense(4, 0.3, kernel_regularizer=tf_keras.regularizers.l2(0.1), name="a")(x)
    hidden = tf_keras.layers.BatchNormalization(momentum=0.5, name="bn")(hidden)
    model = tf_keras.Model(x, _dense(1, 0.2, name="out")(hidden))
    squared = tf_keras.metrics.MeanSquaredError(name="m2")
    model.compile(optimizer, "mse", metrics=["mae", squared])
    return model


def _two_outputs() -> Any:
    xa, xb = tf_keras.Input((2,), name="xa"), tf_keras.Input((2,), name="xb")
    both = tf_keras.layers.concatenate([xa, xb])
    o1 = _dense(1, 0.2, name="o1")(both)
    o2 = _dense(1, 0.1, activation="sigmoid", name="o2")(both)
    model = tf_keras.Model([xa, xb], [o1, o2])
    model.compile(
        "rmsprop",
        {"o1": "mse", "o2": "binary_crossentropy"},
        loss_weights={"o1": 0.5, "o2": 2.0},
        metrics={"o1": "mae", "o2": "acc"},
    )
    return model


class _Subclassed(tf_keras.Model):  # type: ignore[misc]
    def __init__(self, units: int = 3, **more: Any) -> None:
        super().__init__(**more)
        self.units = units
        self.first = _dense(units, 0.3, name="d1")
        self.second = _dense(1, 0.2, name="d2")

    def call(self, inputs: Any, training: Any = None) -> Any:
        return self.second(self.first(inputs))

    def get_config(self) -> dict[str, Any]:
        return {"units": self.units, "name": "sub"}


def _check(estimator: tfe.Estimator, input_fn: Any, abs: float = 2e-6, **expected: float) -> None:
    """Compares the results of an evaluation of four batches."""
    assert estimator.evaluate(input_fn, steps=4) == pytest.approx(expected, abs=abs)


# Numbers. Those below were computed with tf.estimator 2.15.


def test_a_sequential_model_trains_and_evaluates(tmp_path: Path) -> None:
    estimator = tfe.model_to_estimator(_sequential(), model_dir=tmp_path)
    _check(estimator, _input(X), loss=1.089062, mae=0.866912, global_step=0)
    estimator.train(_input(X), steps=5)
    _check(estimator, _input(X), loss=1.068408, mae=0.858062, global_step=5)
    first = next(estimator.predict(_input(X)))
    np.testing.assert_allclose(first["b"], [0.40236], atol=2e-5)


def test_batch_norm_and_regularization_count(tmp_path: Path) -> None:
    estimator = tfe.model_to_estimator(_functional(), model_dir=tmp_path, checkpoint_format="saver")
    input_fn = _input({"x": X, "not asked for": X})
    _check(estimator, input_fn, loss=1.185005, m2=1.113005, mae=0.877316, global_step=0)
    estimator.train(input_fn, steps=5)
    # Processors with and without AVX-512 were up to 7.4e-5 apart after 5 steps.
    _check(estimator, input_fn, abs=2e-4, loss=2.038458, m2=1.966768, mae=1.165205, global_step=5)
    assert estimator.get_variable_value("bn/moving_mean").sum() == pytest.approx(0.48948, abs=2e-4)
    moments = estimator.get_variable_value("training/Adam/out/kernel/m")
    assert moments.sum() == pytest.approx(2.71286, abs=2e-4)


def test_two_inputs_and_two_outputs_go_by_name_or_order(tmp_path: Path) -> None:
    estimator = tfe.model_to_estimator(_two_outputs(), model_dir=tmp_path)
    by_name = _input({"xa": X, "xb": X * 2}, {"o2": BINARY, "o1": Y})
    by_order = _input((X, X * 2), (Y, BINARY))
    # Four batches are all; the fifth step has the first one again.
    estimator.train(by_name, steps=4).train(by_order, steps=1)
    expected = {"loss": 2.239994, "o1_mae": 1.100126, "o2_acc": 0.5, "global_step": 5}
    _check(estimator, by_name, abs=1e-5, **expected)
    first = next(estimator.predict(by_order))
    np.testing.assert_allclose([first["o1"], first["o2"]], [[1.23446], [0.64503]], atol=2e-5)


def test_a_subclassed_model_is_built_anew(tmp_path: Path, logged: list[str]) -> None:
    model = _Subclassed()
    model.compile("sgd", "mse", metrics=["mae"])
    model(X)
    estimator = tfe.model_to_estimator(model, model_dir=tmp_path, checkpoint_format="saver")
    assert any("has weights already" in line for line in logged)
    estimator.train(_input(X), steps=5)
    _check(estimator, _input(X), loss=1.038809, mae=0.845192, global_step=5)
    assert set(next(estimator.predict(_input(X)))) == {"output_1"}
    assert "sub/d1/kernel" in estimator.get_variable_names()


def test_sample_weights_weigh_the_loss(tmp_path: Path) -> None:
    estimator = tfe.model_to_estimator(_sequential(), model_dir=tmp_path)
    weighted = _input({"features": X, "sample_weights": np.abs(Y[:, 0])})
    estimator.train(weighted, steps=5)
    _check(estimator, weighted, loss=1.546238, mae=0.857636, global_step=5)
    assert set(next(estimator.predict(weighted))) == {"b"}


def test_sample_weights_go_to_outputs_by_name_and_order() -> None:
    assert weights_of_outputs([1, 2], ["a", "b"]) == [1, 2]
    assert weights_of_outputs({"b": 2}, ["a", "b"]) == [None, 2]
    assert weights_of_outputs([], ["a", "b"]) == [None, None]
    assert weights_of_outputs(3, ["a"]) == [3]
    with pytest.raises(ValueError, match="list of 1 elements, but the model has 2 outputs"):
        weights_of_outputs([1], ["a", "b"])
    with pytest.raises(ValueError, match=r"Unknown entries in sample_weights dictionary: \['c'\]"):
        weights_of_outputs({"c": 1}, ["a", "b"])
    with pytest.raises(TypeError, match="should be either a list or a dict"):
        weights_of_outputs(3, ["a", "b"])


@pytest.mark.parametrize(
    ("make", "loss"),
    [
        (lambda: tf_keras.optimizers.Adam(0.1), 1.7705317),
        (lambda: v1.train.AdagradOptimizer(0.1), 1.7503606),
        (
            lambda: tf_keras.optimizers.SGD(
                tf_keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
            ),
            1.7916509,
        ),
    ],
    ids=["new", "v1", "schedule"],
)
def test_optimizers_count_their_steps_in_the_global_step(
    tmp_path: Path, make: Make, loss: float
) -> None:
    estimator = tfe.model_to_estimator(_sequential(make()), model_dir=tmp_path)
    estimator.train(_same, steps=2).train(_same, steps=3)  # The restored ones go on.
    result = estimator.evaluate(_same, steps=1)
    assert result["global_step"] == 5
    assert result["loss"] == pytest.approx(loss, abs=2e-6)


# Weights and checkpoints.


def test_a_trained_models_weights_and_averages_are_kept(tmp_path: Path) -> None:
    model = _functional()
    model.fit(X, Y, batch_size=8, epochs=2, verbose=0)
    loss = model.evaluate(X, Y, batch_size=8, verbose=0)[0]
    for kind in ("checkpoint", "saver"):
        folder = tmp_path / kind
        estimator = tfe.model_to_estimator(model, model_dir=folder, checkpoint_format=kind)
        found = estimator.evaluate(_input({"x": X}), steps=4)["loss"]
        assert found == pytest.approx(loss, rel=1e-5)
        assert tf.train.latest_checkpoint(str(folder / "keras")).endswith("keras_model.ckpt")


def test_the_first_checkpoint_is_written_once(tmp_path: Path) -> None:
    tfe.model_to_estimator(_sequential(), model_dir=tmp_path)
    other = _sequential()
    other.set_weights([weight * 0 for weight in other.get_weights()])
    estimator = tfe.model_to_estimator(other, model_dir=tmp_path)
    assert estimator.evaluate(_input(X), steps=4)["loss"] == pytest.approx(1.089062, abs=2e-6)


def test_a_model_can_be_converted_twice_and_compiled_between(tmp_path: Path) -> None:
    model = _sequential()
    first = tfe.model_to_estimator(model, model_dir=tmp_path / "first").train(_input(X), steps=1)
    _sequential()  # Making one gives Keras' classes back to eager execution.
    model.compile("sgd", "mae")
    second = tfe.model_to_estimator(model, model_dir=tmp_path / "second")
    loss = second.evaluate(_input(X), steps=4)["loss"]
    assert loss == pytest.approx(0.866912, abs=2e-6)
    assert first.evaluate(_input(X), steps=1)["global_step"] == 1


def test_checkpoints_hold_objects_or_names(tmp_path: Path) -> None:
    objects = tfe.model_to_estimator(_sequential(), model_dir=tmp_path / "objects")
    objects.train(_input(X), max_steps=2).train(_input(X), max_steps=2)
    assert objects.evaluate(_input(X), steps=1)["global_step"] == 2
    assert set(objects.get_variable_names()) >= {
        "_CHECKPOINTABLE_OBJECT_GRAPH",
        "estimator_global_step/.ATTRIBUTES/VARIABLE_VALUE",
        "layer_with_weights-0/kernel/.ATTRIBUTES/VARIABLE_VALUE",
        "optimizer/learning_rate/.ATTRIBUTES/VARIABLE_VALUE",
    }
    again = _sequential()
    tf.train.Checkpoint(again).restore(objects.latest_checkpoint()).expect_partial()
    kernel = objects.get_variable_value("layer_with_weights-0/kernel/.ATTRIBUTES/VARIABLE_VALUE")
    np.testing.assert_array_equal(again.get_weights()[0], kernel)

    names = tfe.model_to_estimator(
        _sequential(), model_dir=tmp_path / "names", checkpoint_format="saver"
    )
    names.train(_input(X), max_steps=2)
    assert names.get_variable_names() == [
        "a/bias", "a/kernel", "b/bias", "b/kernel", "global_step",
        "training/SGD/decay", "training/SGD/learning_rate", "training/SGD/momentum",
    ]  # fmt: skip


@pytest.mark.parametrize("suffix", [".keras", ""])
def test_a_saved_model_is_loaded(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"saved{suffix}"
    _sequential().save(path)
    estimator = tfe.model_to_estimator(keras_model_path=path, model_dir=tmp_path / "model")
    assert estimator.evaluate(_input(X), steps=4)["loss"] == pytest.approx(1.089062, abs=2e-6)


def test_custom_objects_are_known_by_name(tmp_path: Path) -> None:
    class Doubled(tf_keras.layers.Layer):  # type: ignore[misc]
        def call(self, inputs: Any) -> Any:
            return 2.0 * inputs

    model = tf_keras.Sequential([Doubled(input_shape=(2,)), _dense(1, 0.2)])
    model.compile("sgd", "mse")
    path = tmp_path / "model.h5"
    model.save(path)
    estimator = tfe.model_to_estimator(keras_model_path=path, custom_objects={"Doubled": Doubled})
    expected = np.mean((2 * X @ np.full((2, 1), 0.2) - Y) ** 2)
    assert estimator.evaluate(_input(X), steps=4)["loss"] == pytest.approx(expected, rel=1e-5)


def test_steps_run_in_a_loop_too(tmp_path: Path) -> None:
    config = tfe.RunConfig(tmp_path, device=tfe.DeviceConfig(iterations_per_loop=2))
    estimator = tfe.model_to_estimator(_sequential(), config=config)
    estimator.train(_input(X), steps=4)
    assert estimator.evaluate(_input(X), steps=4)["loss"] == pytest.approx(1.0738016, abs=2e-6)


def test_replicas_share_a_batch_as_one_model_would_train_on_it(tmp_path: Path) -> None:
    config = tfe.RunConfig(tmp_path, device=tfe.DeviceConfig(num_replicas=2))
    model = _sequential()
    own = model.optimizer
    estimator = tfe.model_to_estimator(model, config=config)
    assert model.optimizer is own

    def half() -> tf.data.Dataset:  # Each replica takes a batch.
        return tf.data.Dataset.from_tensor_slices((X, Y)).batch(4).repeat()

    estimator.train(half, steps=4)
    result = estimator.evaluate(half, steps=4)
    assert result["loss"] == pytest.approx(1.0738016, abs=1e-5)  # That of one model.


# Names of metrics and exports.


def test_metrics_get_other_names(tmp_path: Path) -> None:
    names = {"o1_mae": "A", "o2_acc": "B"}
    data = _input({"xa": X, "xb": X}, {"o1": Y, "o2": BINARY})
    estimator = tfe.model_to_estimator(_two_outputs(), metric_names_map=names)
    assert set(estimator.evaluate(data, steps=1)) == {"A", "B", "loss", "global_step"}


def test_names_of_other_metrics_are_refused() -> None:
    model = SimpleNamespace(
        _compile_metrics=["mae"], _compile_metric_functions=[SimpleNamespace(name="mae")]
    )
    with pytest.raises(ValueError, match=r"following keras model metric names:\['mae'\] do not"):
        named_metrics(model, {"x": "C"})
    with pytest.raises(ValueError, match=r"There are unexpected keys.*Received: \['x'\]"):
        named_metrics(model, {"mae": "A", "x": "C"})


def test_outputs_are_exported_under_their_names(tmp_path: Path) -> None:
    outputs = {"o1": tfe.export.RegressionOutput}
    estimator = tfe.model_to_estimator(
        _two_outputs(), model_dir=tmp_path, export_outputs=outputs, checkpoint_format="saver"
    )
    x = {"xa": tf.zeros([1, 2]), "xb": tf.zeros([1, 2])}
    spec = tf.io.FixedLenFeature([2], tf.float32)
    receiver = tfe.export.build_parsing_serving_input_receiver_fn(dict.fromkeys(x, spec))
    estimator.train(_input({"xa": X, "xb": X}, {"o1": Y, "o2": BINARY}), steps=1)
    path = estimator.export_saved_model(str(tmp_path / "export"), receiver)
    signatures = tf.saved_model.load(path).signatures
    assert set(signatures) == {"serving_default", "o1"}
    assert set(signatures["serving_default"].structured_outputs) == {"o1", "o2"}


@pytest.mark.parametrize("kind", ["checkpoint", "saver"])
def test_a_model_is_exported_from_a_checkpoint_of_objects_or_of_names(
    kind: str, tmp_path: Path
) -> None:
    model = _functional()
    model.fit(X, Y, batch_size=8, verbose=0)
    before = model.predict(X, verbose=0)
    estimator = tfe.model_to_estimator(model, model_dir=tmp_path / "model", checkpoint_format=kind)
    spec = {"x": tf.io.FixedLenFeature([2], tf.float32)}

    def served(checkpoint: str | None = None) -> Any:
        """Exports the model, and returns what it serves."""
        folder = estimator.export_saved_model(
            str(tmp_path / "export"),
            tfe.export.build_parsing_serving_input_receiver_fn(spec),
            checkpoint_path=checkpoint,
        )
        rows = [
            tf.train.Example(
                features=tf.train.Features(
                    feature={"x": tf.train.Feature(float_list=tf.train.FloatList(value=row))}
                )
            ).SerializeToString()
            for row in X
        ]
        signature = tf.saved_model.load(folder).signatures["serving_default"]
        return signature(tf.constant(rows))["out"].numpy()

    np.testing.assert_allclose(served(), before, atol=1e-6)  # Without a checkpoint of its own.
    estimator.train(_input({"x": X}), steps=2)
    first = estimator.latest_checkpoint()
    trained = served()
    predicted = [one["out"] for one in estimator.predict(_input({"x": X}))][: len(X)]
    np.testing.assert_allclose(trained, predicted, atol=1e-6)
    assert np.abs(trained - before).max() > 1e-3
    estimator.train(_input({"x": X}), steps=2)
    np.testing.assert_array_equal(served(first), trained)
    assert np.abs(served() - trained).max() > 1e-3


def test_exports_of_no_output_are_refused() -> None:
    estimator = tfe.model_to_estimator(_sequential(), export_outputs={"z": tfe.export.EvalOutput})
    with pytest.raises(KeyError, match=r"Expected keys: {'z'}.*Missed keys: {'z'}"):
        estimator.evaluate(_input(X), steps=1)


# What is refused.


def test_features_without_an_inputs_name_are_refused() -> None:
    estimator = tfe.model_to_estimator(_functional())
    with pytest.raises(
        KeyError, match=r"passed into features does not cover requested.*Missed keys: {'x'}"
    ):
        estimator.train(_input({"z": X}), steps=1)


class _WithoutConfig(_Subclassed):
    def get_config(self) -> dict[str, Any]:
        raise NotImplementedError


def _compiled(model: Any) -> Any:
    model.compile("sgd", "mse")
    return model


REFUSED: dict[str, Callable[[], dict[str, Any]]] = {
    "Either `keras_model` or `keras_model_path`": lambda: {},
    "but not both": lambda: {"keras_model": _sequential(), "keras_model_path": "somewhere"},
    "Google's storage": lambda: {"keras_model_path": "gs://bucket/model.h5"},
    "got a model of Keras 3. Build it with tf_keras": lambda: {
        "keras_model": _compiled(keras.Sequential([keras.layers.Dense(1)]))
    },
    "must be a compiled model of tf_keras.*got 3": lambda: {"keras_model": 3},
    "has not been compiled yet": lambda: {"keras_model": tf_keras.Sequential([_dense(1, 0.1)])},
    'must be one of "checkpoint" or "saver". Got foo': lambda: {
        "keras_model": _sequential(), "checkpoint_format": "foo"
    },
    "not supported with subclassed models": lambda: {"keras_model": _compiled(_Subclassed())},
    "must implement `Model.get_config`": lambda: {"keras_model": _compiled(_WithoutConfig())},
    "Lion has no counterpart.*legacy.Adam": lambda: {
        "keras_model": _sequential(tf_keras.optimizers.Lion(0.1))
    },
    "AdamW with weight_decay, use_ema has no counterpart.*legacy.Adam": lambda: {
        "keras_model": _sequential(tf_keras.optimizers.AdamW(0.1, use_ema=True))
    },
    "compiled with a list of 2 optimizers, .* with one of": lambda: {
        "keras_model": _sequential([tf_keras.optimizers.legacy.SGD() for _ in range(2)])
    },
    "with weight_decay has no": lambda: {
        "keras_model": _sequential(
            tf_keras.mixed_precision.LossScaleOptimizer(tf_keras.optimizers.SGD(weight_decay=0.1))
        )
    },
    "are set both in constructor": lambda: {
        "keras_model": _sequential(), "model_dir": "one", "config": tfe.RunConfig("two")
    },
    "must be an instance of RunConfig": lambda: {"keras_model": _sequential(), "config": {}},
}  # fmt: skip


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_converted_is_refused(message: str) -> None:
    arguments = REFUSED[message]()
    with pytest.raises(ValueError, match=message):
        tfe.model_to_estimator(**arguments)
