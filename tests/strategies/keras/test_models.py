"""Keras models that cannot train on several replicas are refused in one line."""

import inspect
import re
import sys
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from tfdist.strategies import LocalStrategy
from tfdist.strategies.keras import models as keras_models
from tfdist.strategies.keras.fit import current_fit
from tfdist.strategies.keras.models import KerasModelError

X = np.ones([4, 2], np.float32)


class _Distributed(keras.optimizers.SGD):  # type: ignore[misc]
    """An optimizer like the one that Horovod makes."""

    def _allreduce_grads(self) -> None:
        raise NotImplementedError


def _model(num_replicas: int, **compiled: Any) -> Any:
    with LocalStrategy(num_replicas).scope():
        model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
        model.compile(**{"optimizer": "sgd", "loss": "mse", **compiled})
    return model


def _fit(num_replicas: int, **compiled: Any) -> Any:
    dataset = tf.data.Dataset.from_tensor_slices((X, X[:, :1])).batch(4)
    return _model(num_replicas, **compiled).fit(dataset, verbose=0)


def test_xla_is_refused_with_replicas_alone() -> None:
    with pytest.raises(KerasModelError, match="compiled with jit_compile=True"):
        _fit(2, jit_compile=True)
    assert _fit(2).history["loss"]


def test_an_optimizer_that_was_made_outside_of_the_scope_is_refused_with_the_fix() -> None:
    with pytest.raises(KerasModelError, match=r"outside of the strategy's scope\. Make the model"):
        _fit(2, optimizer=keras.optimizers.Adam())


def fit_with_an_optimizer_from_before_the_scope() -> str:
    from tfdist.strategies import MultiWorkerStrategy

    strategy = MultiWorkerStrategy()
    optimizer = tf_keras.optimizers.Adam()
    with strategy.scope():
        model = tf_keras.Sequential([tf_keras.Input([2]), tf_keras.layers.Dense(1)])
        model.compile(optimizer, "mse")
    with pytest.raises(KerasModelError) as caught:
        model.fit(X, X[:, :1], verbose=0)
    return str(caught.value)


@pytest.mark.processes
def test_an_optimizer_from_before_the_scope_is_refused_over_grpc(fake_cluster: Any) -> None:
    program = fit_with_an_optimizer_from_before_the_scope
    for error in fake_cluster.run(program, num_workers=2, timeout_s=90):
        assert "outside of the strategy's scope. Make the model" in error


def test_an_optimizer_of_horovod_is_refused() -> None:
    with pytest.raises(KerasModelError, match="Horovod's DistributedOptimizer"):
        _fit(2, optimizer=_Distributed(0.1))


def test_one_batch_is_refused_where_all_replicas_would_get_its_rows() -> None:
    with pytest.raises(KerasModelError, match="Call fit"):
        _model(2).train_on_batch(X, X[:, :1])
    assert _model(1).train_on_batch(X, X[:, :1]) > 0


@pytest.mark.parametrize("library", [keras, tf_keras])
def test_the_rows_of_one_batch_are_predicted_once(library: Any) -> None:
    with LocalStrategy(2).scope():
        layers = [library.layers.BatchNormalization(), library.layers.Dense(1)]
        model = library.Sequential([library.Input([2]), *layers])
        model.compile("sgd", "mse")
    model.fit(tf.data.Dataset.from_tensor_slices((X, X[:, :1])).batch(4), verbose=0)
    rows = np.arange(6, dtype=np.float32).reshape(3, 2)
    for _ in range(2):
        expected = model.predict(rows, verbose=0)
        np.testing.assert_allclose(model.predict_on_batch(rows), expected, rtol=1e-6)
        model.set_weights([weights + 1 for weights in model.get_weights()])


def test_autograph_converts_no_code_of_strategies() -> None:
    """It would take the second half of a program's first step."""
    with LocalStrategy(2).scope():
        model = tf_keras.Sequential([tf_keras.Input([2]), tf_keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    model.fit(tf.data.Dataset.from_tensor_slices((X, X[:, :1])).batch(4), verbose=0)
    made = [name for name in sys.modules if name.startswith("__autograph_generated_file")]
    text = "".join(inspect.getsource(sys.modules[name]) for name in made)
    converted = set(re.findall(r"def tf__(\w+)", text))
    assert "train_function" in converted
    assert "_sums" not in converted


def test_a_branch_in_a_layer_is_taken_by_each_replica() -> None:
    class Branch(tf_keras.layers.Layer):  # type: ignore[misc]
        def call(self, x: tf.Tensor) -> tf.Tensor:
            if tf.reduce_sum(x) > 0:
                x = 10 * x
            return x

    strategy, layer = LocalStrategy(2), Branch()

    @tf.function
    def call() -> tf.Tensor:
        def step() -> tf.Tensor:
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            return layer(tf.cast([replica], tf.float32))

        return strategy.gather(strategy.run(step), axis=0)

    np.testing.assert_array_equal(call(), [0, 10])


def test_a_keras_3_before_3_10_is_refused_with_a_strategy_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Variables of metrics have a synchronization from Keras 3.10 on."""
    optimizers = keras.optimizers
    changed = [(keras.Model, "compile"), (keras.Model, "predict")]
    changed += [(optimizers.Optimizer, "apply"), (optimizers.LossScaleOptimizer, "apply")]
    changed += [(optimizers.Optimizer, "_all_reduce_sum_gradients")]
    for kind, name in changed:  # As they were when the test ends.
        monkeypatch.setattr(kind, name, getattr(kind, name))
    old = SimpleNamespace(
        Model=keras.Model, Variable=object, optimizers=optimizers, __version__="3.9.2"
    )
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "keras", old)
        keras_models.adapt_keras()
    with pytest.raises(KerasModelError, match=r"this is Keras 3\.9\.2, .*keras>=3\.10"):
        _model(1)
    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    assert model.predict(X, verbose=0).shape == (4, 1)


def _mean(y: Any, p: Any) -> Any:
    return tf.reduce_mean(tf.square(y - p))


def _nested(y: Any, p: Any) -> Any:
    return keras.losses.MeanSquaredError()(y, p)


def test_replicas_train_as_one_process_whether_a_loss_is_one_number_or_one_for_each_row() -> None:
    def train(num_replicas: int, loss: Any) -> Any:
        keras.utils.set_random_seed(1)
        model = _model(num_replicas, loss=loss)
        data = tf.data.Dataset.from_tensor_slices((X, X[:, :1])).batch(4)
        history = model.fit(data, verbose=0).history
        return [*history["loss"], *model.get_weights()[0][:, 0]]

    of_sums = keras.losses.MeanSquaredError("sum")
    expected = train(1, "mse")
    for found in (train(3, "mse"), train(2, _mean), train(2, _nested)):
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    np.testing.assert_allclose(train(2, of_sums), train(1, of_sums), rtol=1e-6)


@pytest.mark.parametrize(
    ("library", "num_replicas", "is_own"),
    [
        (keras, 1, True),
        *((one, 2, is_own) for one in (keras, tf_keras) for is_own in (True, False)),
    ],
)
def test_a_train_step_whose_loss_is_not_divided_by_the_replicas_is_reported(
    library: Any, num_replicas: int, is_own: bool, logged: list[str]
) -> None:
    class Own(library.Model):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.dense = library.layers.Dense(1)

        def call(self, x: Any) -> Any:
            return self.dense(x)

        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                found = self(x, training=True)
                loss = _mean(y, found) if is_own else self.compute_loss(x, y, found)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"loss": loss}

    with LocalStrategy(num_replicas).scope():
        model = Own()
        model.compile("sgd", "mse")
    model.fit(tf.data.Dataset.from_tensor_slices((X, X[:, :1])).batch(2), epochs=2, verbose=0)
    found = [line for line in logged if "Own.train_step" in line]
    assert len(found) == (num_replicas == 2 and is_own)
    assert all("divide by the 2 replicas" in line for line in found)


def test_an_initial_epoch_may_be_given_by_its_place() -> None:
    found = []
    note = keras.callbacks.LambdaCallback(on_train_begin=lambda logs: found.append(current_fit()))
    model = _model(1)
    model.fit(X, X[:, :1], 4, 3, 0, [note], 0.0, None, True, None, None, 2)
    assert [run.first_epoch for run in found] == [2]


def test_a_stateful_layer_is_refused_with_replicas_alone() -> None:
    def fit(num_replicas: int) -> Any:
        with LocalStrategy(num_replicas).scope():
            inputs = keras.Input(batch_shape=(2, 1, 2))
            model = keras.Sequential([inputs, keras.layers.LSTM(1, stateful=True)])
            model.compile("sgd", "mse")
        data = tf.data.Dataset.from_tensor_slices((X[:, None], X[:, :1])).batch(
            2 * num_replicas, drop_remainder=True
        )
        return model.fit(data, verbose=0)

    with pytest.raises(KerasModelError, match=r"lstm.* has stateful=True.*one replica"):
        fit(2)
    assert fit(1).history["loss"]


def test_no_batch_is_read_before_the_first_step() -> None:
    order: list[int] = []
    seen = (
        tf.data.Dataset.range(8)
        .shuffle(8, seed=1)
        .map(lambda n: (tf.py_function(lambda n: order.append(int(n)), [n], []), n)[1])
    )
    data = seen.map(lambda n: (tf.fill([2], tf.cast(n, tf.float32)), [0.0])).batch(4)
    model = _model(2)
    model.fit(data, verbose=0)
    alone = [int(n) for n in tf.data.Dataset.range(8).shuffle(8, seed=1)]
    assert order == alone


def test_the_line_about_a_loss_comes_once_and_only_where_it_is_no_mean(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def dice(y: Any, p: Any) -> Any:
        return 1 - tf.reduce_sum(y * p) / tf.reduce_sum(y + p)

    with caplog.at_level("WARNING"):
        _fit(2, loss=_mean)
        assert "loss" not in caplog.text
        model = _model(2, loss=dice)
        for _ in range(2):
            model.fit(tf.data.Dataset.from_tensor_slices((X, X[:, :1])).batch(4), verbose=0)
    assert caplog.text.count("The loss dice gives one number for the rows of a replica") == 1


@pytest.mark.parametrize("library", [keras, tf_keras])
@pytest.mark.parametrize("is_mean", [True, False])
def test_a_loss_of_shape_1_is_one_number_for_the_rows_of_a_replica_of_which_it_may_have_none(
    library: Any, is_mean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def loss(y: Any, p: Any) -> Any:
        off = tf.square(y - p)
        number = tf.cast(tf.shape(off)[0], tf.float32)
        mean = tf.reduce_mean(off) if is_mean else tf.reduce_sum(off) / number
        return tf.reshape(mean, (1,))

    def trained(num_replicas: int) -> Any:
        library.utils.set_random_seed(1)
        with LocalStrategy(num_replicas).scope():
            model = library.Sequential([library.Input([2]), library.layers.Dense(1)])
            model.compile("sgd", loss)
        x = np.linspace(0, 1, 10, dtype=np.float32).reshape(5, 2)
        model.fit(tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(4), verbose=0)
        return model.get_weights()

    with caplog.at_level("WARNING"):
        for one, other in zip(trained(1), trained(2), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-6)
    assert ("The loss loss gives one number" in caplog.text) == (not is_mean)
