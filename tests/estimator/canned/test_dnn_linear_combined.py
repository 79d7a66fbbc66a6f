"""A linear model beside a network. Numbers without a formula: from tf.estimator 2.15."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1
import tf_keras

import tfdist.estimator as tfe


def _both(columns: Any, **rest: Any) -> dict[str, Any]:
    return {
        "linear_feature_columns": [columns["word"]],
        "dnn_feature_columns": [columns["age"]],
        "dnn_hidden_units": [3],
        **rest,
    }


def test_it_trains_as_tf_estimator_does(
    columns: Any, batches: Any, save: Any, shapes: Any, losses: Any
) -> None:
    start = save(shapes["both"])
    estimator = tfe.DNNLinearCombinedClassifier(**_both(columns, warm_start_from=start))
    found = losses(estimator, batches("two"))
    np.testing.assert_allclose(found, [1.266156, 0.694938, 0.936736, 1.050257], atol=2e-6)
    kernel = estimator.get_variable_value("dnn/logits/kernel")[:, 0]
    np.testing.assert_allclose(kernel, [-0.961864, -0.750987, 0.149877], atol=2e-6)
    weights = estimator.get_variable_value("linear/linear_model/word/weights")[:, 0]
    np.testing.assert_allclose(weights, [0.088578, 0.000149, 0.084123, -0.056642], atol=2e-6)
    assert estimator.get_variable_value("global_step") == 4
    # The linear part's optimizer counts for itself.
    assert estimator.get_variable_value("training/Ftrl/iter") == 4
    assert estimator.get_variable_value("training/Adagrad/learning_rate") == pytest.approx(0.001)
    assert estimator.get_variable_value("training/Ftrl/learning_rate") == pytest.approx(0.005)


def _sgd(rate: float) -> Any:
    return lambda: tf_keras.optimizers.legacy.SGD(rate)


def _v1_sgd(rate: float) -> Any:
    return lambda: v1.train.GradientDescentOptimizer(rate)


@pytest.mark.parametrize(
    ("dnn_optimizer", "linear_optimizer", "changed", "kept"),
    [(_v1_sgd(0.1), _sgd(0.0), "dnn", "linear"), (_sgd(0.0), _v1_sgd(0.1), "linear", "dnn")],
)
def test_each_optimizer_changes_its_own_part_and_a_step_is_one_step(
    columns: Any,
    batches: Any,
    save: Any,
    shapes: Any,
    dnn_optimizer: Any,
    linear_optimizer: Any,
    changed: str,
    kept: str,
) -> None:
    start = save(shapes["both"])
    estimator = tfe.DNNLinearCombinedRegressor(
        **_both(columns),
        dnn_optimizer=dnn_optimizer,
        linear_optimizer=linear_optimizer,
        warm_start_from=start,
    )
    estimator.train(batches("number"), steps=2)
    assert estimator.get_variable_value("global_step") == 2

    def differs(name: str) -> bool:
        return np.any(estimator.get_variable_value(name) != tf.train.load_variable(start, name))

    assert all(map(differs, shapes[changed])) and not any(map(differs, shapes[kept]))


@pytest.mark.parametrize(("own", "other"), [("dnn", "linear"), ("linear", "dnn")])
def test_either_part_alone_is_trained(
    columns: Any, batches: Any, shapes: Any, own: str, other: str
) -> None:
    estimator = tfe.DNNLinearCombinedRegressor(
        **{**_both(columns), f"{other}_feature_columns": None}
    )
    estimator.train(batches("number"), steps=2)
    names = set(estimator.get_variable_names())
    assert set(shapes[own]) <= names and not set(shapes[other]) & names
    assert estimator.get_variable_value("global_step") == 2


def test_both_parts_are_summarized(
    columns: Any, batches: Any, read_events: Any, tmp_path: Path
) -> None:
    head = tfe.BinaryClassHead()
    estimator = tfe.DNNLinearCombinedEstimator(head, tmp_path, **_both(columns, batch_norm=True))
    estimator.train(batches("two"), steps=1)
    assert {
        "bias", "fraction_of_zero_weights", "linear/activation", "linear/fraction_of_zero_values",
        "dnn/hiddenlayer_0/activation", "dnn/logits/fraction_of_zero_values",
    } <= set(read_events(tmp_path))  # fmt: skip
    moved = estimator.get_variable_value("dnn/hiddenlayer_0/batchnorm_0/moving_variance")
    assert np.all(moved != 1.0)
