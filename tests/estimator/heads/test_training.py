"""Heads inside an Estimator: optimizers, the global step, summaries."""

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

X = np.arange(8, dtype=np.float32).reshape(8, 1) / 8
Y = (X > 0.4).astype(np.int32)


def _input_fn() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(({"x": X}, Y)).batch(4).repeat()


def _words() -> tf.data.Dataset:
    words = np.array(["no", "yes"])[Y]
    return tf.data.Dataset.from_tensor_slices(({"x": X}, words)).batch(4).repeat()


@pytest.fixture
def trained(tmp_path: Path) -> Callable[..., tfe.Estimator]:
    """Trains one dense layer under a binary head for three steps."""

    def trained(
        make_optimizer: Callable[[], Any] | None = None,
        train_op_fn: Callable[[Any], Any] | None = None,
        *,
        input_fn: Any = _input_fn,
        vocabulary: list[str] | None = None,
        iterations: int = 1,
        steps: int = 3,
    ) -> tfe.Estimator:
        def model_fn(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
            dense = tf_keras.layers.Dense(1, name="d", kernel_initializer="zeros")
            return tfe.BinaryClassHead(label_vocabulary=vocabulary).create_estimator_spec(
                features,
                mode,
                dense(features["x"]),
                labels,
                optimizer=make_optimizer() if make_optimizer else None,
                trainable_variables=dense.trainable_variables,
                train_op_fn=train_op_fn,
            )

        device = tfe.DeviceConfig(iterations_per_loop=iterations)
        estimator = tfe.Estimator(model_fn, tmp_path, tfe.RunConfig(device=device))
        return estimator.train(input_fn, steps=steps)

    return trained


def _counting(optimizer: Any) -> Any:
    optimizer.iterations = v1.train.get_or_create_global_step()
    return optimizer


def _decay() -> Any:
    return tf_keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)


legacy = tf_keras.optimizers.legacy

# Kernel and bias after three steps with tf.estimator 2.15, which knew the optimizers of
# tf_keras.optimizers.legacy only.
ADAM, MOMENTUM, DECAY = (-0.016465, -0.119291), (0.032563, -0.086812), (0.005982, -0.036653)
OPTIMIZERS: dict[str, tuple[Callable[[], Any], tuple[float, float]]] = {
    "legacy": (lambda: legacy.Adam(0.1), ADAM),
    "legacy, schedule": (lambda: _counting(legacy.SGD(_decay())), DECAY),
    "newer": (lambda: tf_keras.optimizers.Adam(0.1), ADAM),
    "newer, schedule": (lambda: _counting(tf_keras.optimizers.SGD(_decay())), DECAY),
    "v1": (lambda: v1.train.MomentumOptimizer(0.1, 0.9), MOMENTUM),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_an_optimizer_trains_and_the_step_is_counted_once(trained: Any, kind: str) -> None:
    make, (kernel, bias) = OPTIMIZERS[kind]
    estimator = trained(make)
    assert estimator.get_variable_value("d/kernel")[0, 0] == pytest.approx(kernel, abs=2e-6)
    assert estimator.get_variable_value("d/bias")[0] == pytest.approx(bias, abs=2e-6)
    assert estimator.get_variable_value("global_step") == 3
    # Another mode finds all of its variables in the checkpoint.
    assert next(estimator.predict(_input_fn))["logits"] == pytest.approx(bias, abs=2e-6)


def test_a_newer_optimizer_made_outside_of_the_graph_is_usable_again(trained: Any) -> None:
    optimizer = tf_keras.optimizers.SGD(0.1, momentum=0.9)
    estimator = trained(lambda: optimizer, steps=1)
    estimator.train(_input_fn, steps=2)
    assert estimator.get_variable_value("global_step") == 3


def test_gradients_are_clipped_as_a_newer_optimizer_says(trained: Any) -> None:
    estimator = trained(lambda: tf_keras.optimizers.SGD(0.1, clipnorm=0.01))
    assert estimator.get_variable_value("d/bias")[0] == pytest.approx(-0.001, abs=1e-6)


def test_a_learning_rate_may_be_a_tensor(trained: Any) -> None:
    def make() -> Any:
        step = tf.cast(v1.train.get_global_step(), tf.float32)
        return tf_keras.optimizers.SGD(tf.where(step < 2, 0.0, 0.1))

    assert trained(make, steps=2).get_variable_value("d/bias")[0] == 0.0
    assert trained(make, steps=1).get_variable_value("d/bias")[0] != 0.0


@pytest.mark.parametrize("counts", [True, False])
def test_a_train_op_fn_trains(trained: Any, counts: bool) -> None:
    def train_op_fn(loss: Any) -> Any:
        step = v1.train.get_global_step() if counts else None
        return v1.train.MomentumOptimizer(0.1, 0.9).minimize(loss, global_step=step)

    estimator = trained(train_op_fn=train_op_fn)
    assert estimator.get_variable_value("d/bias")[0] == pytest.approx(MOMENTUM[1], abs=2e-6)
    assert estimator.get_variable_value("global_step") == 3


def test_words_are_looked_up_in_a_loop_of_steps(trained: Any) -> None:
    estimator = trained(
        OPTIMIZERS["legacy"][0], input_fn=_words, vocabulary=["no", "yes"], iterations=2, steps=4
    )
    metrics = estimator.evaluate(_words, steps=2)
    assert metrics["global_step"] == 4
    assert metrics["label/mean"] == 0.5
    first = next(iter(estimator.predict(_words)))
    assert first["classes"] in (b"no", b"yes")
    assert first["all_classes"].tolist() == [b"no", b"yes"]


# What is refused.


@pytest.fixture
def spec(graph: tf.Graph) -> Callable[..., tfe.EstimatorSpec]:
    """Builds the spec of a binary head in TRAIN; the fixture's argument `weight` is a variable."""

    def spec(head: tfe.Head | None = None, **arguments: Any) -> tfe.EstimatorSpec:
        weight = tf.Variable(1.0)
        for name, value in arguments.items():
            if value == "weight":
                arguments[name] = weight
            elif value == ["weight"]:
                arguments[name] = [weight]
        head = head or tfe.BinaryClassHead()
        return head.create_estimator_spec({}, tfe.ModeKeys.TRAIN, X * weight, Y, **arguments)

    return spec


REFUSED: dict[str, dict[str, Any]] = {
    "train_op_fn and optimizer cannot both be None": {},
    "train_op_fn and optimizer cannot both be set": {
        "optimizer": legacy.SGD(),
        "train_op_fn": lambda loss: loss,
    },
    "trainable_variables cannot be None": {"optimizer": legacy.SGD()},
    "trainable_variables should be a list or a tuple": {
        "optimizer": legacy.SGD(),
        "trainable_variables": "weight",
    },
    "update_ops should be a list or a tuple": {
        "train_op_fn": lambda loss: loss,
        "update_ops": "weight",
    },
    "The given optimizer is not a tf.keras.optimizers.Optimizer instance": {
        "optimizer": "sgd",
        "trainable_variables": ["weight"],
    },
    "is not a tf.keras.optimizers.Optimizer instance of Keras 2": {
        "optimizer": keras.optimizers.SGD(),
        "trainable_variables": ["weight"],
    },
}


@pytest.mark.parametrize("message", REFUSED)
def test_unusable_training_arguments_are_refused(spec: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        spec(**REFUSED[message])


# What a step runs, and writes.


def test_an_optimizer_of_ones_own_needs_get_updates_only(spec: Any, fetch: Any) -> None:
    class Optimizer:
        def get_updates(self, loss: Any, params: Any) -> list[Any]:
            return [tf.strings.join(["loss ", tf.strings.as_string(loss, precision=3)])]

    built = spec(optimizer=Optimizer(), trainable_variables=["weight"])
    loss, result = fetch([built.loss, built.train_op])
    assert result == f"loss {loss:.3f}".encode()


def test_update_ops_run_with_the_train_op(graph: tf.Graph, fetch: Any) -> None:
    count = tf.Variable(0)
    built = tfe.RegressionHead().create_estimator_spec(
        {},
        tfe.ModeKeys.TRAIN,
        X,
        X,
        train_op_fn=lambda loss: tf.no_op(),
        update_ops=[v1.assign_add(count, 5)],
    )
    with v1.Session() as session:
        session.run(count.initializer)
        session.run(built.train_op)
        assert session.run(count) == 5


def test_a_v1_optimizer_finds_the_trainable_variables_by_itself(
    graph: tf.Graph, fetch: Any
) -> None:
    v1.train.create_global_step()
    weight = v1.get_variable("weight", [], initializer=v1.ones_initializer())
    built = tfe.RegressionHead().create_estimator_spec(
        {}, tfe.ModeKeys.TRAIN, X * weight, 0 * X, optimizer=v1.train.GradientDescentOptimizer(0.1)
    )
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        session.run(built.train_op)
        assert session.run(weight) == pytest.approx(1 - 0.1 * 2 * np.mean(X**2))


@pytest.mark.parametrize(("name", "suffix"), [(None, ""), ("yes", "/yes")])
def test_loss_and_regularization_loss_are_written_with_the_heads_name_as_suffix(
    spec: Any, fetch: Any, name: str | None, suffix: str
) -> None:
    head = tfe.BinaryClassHead(name=name)
    spec(head, train_op_fn=lambda loss: loss, regularization_losses=[1.5, 0.5])
    summary = v1.summary.Summary.FromString(fetch(v1.summary.merge_all()))
    loss = np.mean(np.log(1 + np.exp(np.where(Y == 1, -X, X))))
    assert {value.tag: value.simple_value for value in summary.value} == pytest.approx(
        {f"loss{suffix}": loss + 2, f"regularization_loss{suffix}": 2.0}
    )
