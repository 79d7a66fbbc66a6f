"""A step that learns nothing is warned of."""

from typing import Any

import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1
import tf_keras

import tfdist.estimator as tfe


def _train(train_op_of: Any, number: int = 1) -> None:
    def model_fn(features: Any, mode: str) -> tfe.EstimatorSpec:
        weights = [
            v1.get_variable(f"weight_{i}", [2], initializer=v1.ones_initializer())
            for i in range(number)
        ]
        loss = tf.add_n([tf.reduce_sum(features * weight) for weight in [features, *weights]])
        return tfe.EstimatorSpec(mode, loss=loss, train_op=train_op_of(loss, weights))

    def input_fn() -> tf.data.Dataset:
        return tf.data.Dataset.from_tensors([1.0, 2.0])

    tfe.Estimator(model_fn).train(input_fn)


def _warnings(logged: list[str]) -> list[str]:
    return [line for line in logged if line.startswith("train_op changes none")]


def _with_newer_keras_optimizer(loss: Any, weights: list[Any]) -> Any:
    optimizer = tf_keras.optimizers.SGD(0.1)
    gradients = tf.gradients(loss, weights)
    return optimizer.apply_gradients(zip(gradients, weights, strict=True))


@pytest.mark.parametrize(
    "train_op_of",
    [lambda loss, weights: tf.no_op(), _with_newer_keras_optimizer],
    ids=["no_op", "newer Keras optimizer"],
)
def test_a_step_that_changes_no_weight_is_warned_of(logged: list[str], train_op_of: Any) -> None:
    _train(train_op_of, number=2)
    assert len(_warnings(logged)) == 1
    assert "none of the 2 trainable variables" in _warnings(logged)[0]


def _in_a_branch(loss: Any, weights: list[Any]) -> Any:
    change = weights[0].assign_add
    return tf.cond(loss > 0.0, lambda: change([1.0, 1.0]), lambda: weights[0] + 0.0)


@pytest.mark.parametrize(
    "train_op_of",
    [
        lambda loss, weights: v1.train.GradientDescentOptimizer(0.1).minimize(loss),
        lambda loss, weights: v1.train.AdamOptimizer(0.1).minimize(loss),
        lambda loss, weights: weights[0].assign_add([1.0, 1.0]),
        lambda loss, weights: tf_keras.optimizers.legacy.SGD(0.1).get_updates(loss, weights)[0],
        _in_a_branch,
    ],
    ids=["v1", "Adam", "assigned", "legacy Keras", "in a branch"],
)
def test_a_step_that_changes_a_weight_is_not(logged: list[str], train_op_of: Any) -> None:
    _train(train_op_of)
    assert not _warnings(logged)


def test_a_model_without_weights_is_not(logged: list[str]) -> None:
    _train(lambda loss, weights: tf.no_op(), number=0)
    assert not _warnings(logged)
