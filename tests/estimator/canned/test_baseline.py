"""Models that ignore the features. Numbers without a formula: from tf.estimator 2.15."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tfdist.estimator as tfe


def test_a_classifier_trains_as_tf_estimator_does(batches: Any, losses: Any) -> None:
    estimator = tfe.BaselineClassifier(n_classes=3)
    found = losses(estimator, batches("three", "age"))
    np.testing.assert_allclose(found, [1.098612, 0.993033, 0.874046, 0.937591], atol=2e-6)
    bias = estimator.get_variable_value("baseline/bias")
    np.testing.assert_allclose(bias, [0.119625, 0.502793, -0.574586], atol=2e-6)
    slots = {f"training/Ftrl/baseline/bias/{slot}" for slot in ("accumulator", "linear")}
    assert slots <= set(estimator.get_variable_names())


def test_a_regressor_learns_the_mean_of_the_labels(labels: Any, features: Any) -> None:
    # All twelve examples in each step, and several features.
    def input_fn() -> tf.data.Dataset:
        return tf.data.Dataset.from_tensors((features, labels["number"])).repeat()

    estimator = tfe.BaselineRegressor(optimizer=lambda: tf_keras.optimizers.legacy.SGD(0.5))
    estimator.train(input_fn, steps=1)
    # One step of gradient descent from 0 on the squared error: 0.5 * 2 * mean.
    found = estimator.get_variable_value("baseline/bias")
    assert found == pytest.approx([labels["number"].mean()], rel=1e-5)


def test_features_of_different_batches_are_refused() -> None:
    estimator = tfe.BaselineRegressor()
    with pytest.raises(tf.errors.InvalidArgumentError):
        estimator.train(lambda: ({"a": [[1.0]], "b": [[1.0], [2.0]]}, [[1.0]]), steps=1)


@pytest.mark.parametrize("as_column", [False, True])
def test_the_weights_are_no_feature(as_column: bool) -> None:
    weight = tf.feature_column.numeric_column("weight") if as_column else "weight"
    estimator = tfe.BaselineClassifier(weight_column=weight)
    batch = {"age": [[1.0], [2.0]], "weight": [[1.0], [3.0]]}
    estimator.train(lambda: (batch, [[0], [1]]), steps=1)
    # Class 1 weighs more.
    assert estimator.get_variable_value("baseline/bias")[0] > 0


def test_a_head_of_the_users_is_trained(batches: Any) -> None:
    estimator = tfe.BaselineEstimator(tfe.RegressionHead(), optimizer="Adam")
    estimator.train(batches("number"), steps=2)
    assert estimator.get_variable_value("training/Adam/learning_rate") == pytest.approx(0.3)
    assert "prediction/mean" in estimator.evaluate(batches("number", repeat=False))
