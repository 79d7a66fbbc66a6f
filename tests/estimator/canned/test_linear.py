"""Linear models. Numbers without a formula were computed with tf.estimator 2.15."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfdist.estimator as tfe

MODEL = "linear/linear_model/"
WIDE = ["age", "size", "ages", "word", "id", "crossed", "weighted"]
WIDE_SHAPES = {
    MODEL + "age/weights": [1, 1],
    MODEL + "size/weights": [2, 1],
    MODEL + "age_bucketized/weights": [3, 1],
    MODEL + "word/weights": [4, 1],
    MODEL + "id/weights": [5, 1],
    MODEL + "id_X_word/weights": [6, 1],
    MODEL + "word_weighted_by_weight/weights": [4, 1],
    MODEL + "bias_weights": [1],
}


def test_a_classifier_over_every_kind_of_column_trains_as_tf_estimator_does(
    columns: Any, batches: Any, save: Any, losses: Any
) -> None:
    start = save(WIDE_SHAPES)
    estimator = tfe.LinearClassifier([columns[name] for name in WIDE], warm_start_from=start)
    found = losses(estimator, batches("two"))
    np.testing.assert_allclose(found, [1.289315, 0.721899, 0.731812, 0.578279], atol=2e-6)
    bias = estimator.get_variable_value(MODEL + "bias_weights")
    np.testing.assert_allclose(bias, [0.040536], atol=2e-6)
    np.testing.assert_allclose(
        estimator.get_variable_value(MODEL + "id/weights")[:, 0],
        [-0.278051, -0.015251, 0.00965, -0.109772, 0.081687],
        atol=2e-6,
    )
    metrics = estimator.evaluate(batches("two", repeat=False))
    expected = {
        "accuracy": 0.75, "accuracy_baseline": 0.666667, "auc": 0.84375,
        "auc_precision_recall": 0.695901, "average_loss": 0.560216, "label/mean": 0.333333,
        "loss": 0.560216, "precision": 0.666667, "prediction/mean": 0.410497, "recall": 0.5,
        "global_step": 4,
    }  # fmt: skip
    assert metrics == pytest.approx(expected, abs=2e-6)
    first = next(estimator.predict(batches(None, repeat=False)))
    assert first["logits"] == pytest.approx([-0.993002], abs=2e-6)
    assert first["classes"] == [b"0"]


def test_the_variables_and_slots_have_the_names_of_tf_estimators_checkpoints(
    columns: Any, batches: Any
) -> None:
    estimator = tfe.LinearClassifier([columns["age"], columns["word"]])
    estimator.train(batches("two"), steps=1)
    variables = [MODEL + name for name in ("age/weights", "word/weights", "bias_weights")]
    ftrl = "training/Ftrl/"
    settings = [
        "beta", "decay", "l1_regularization_strength", "l2_regularization_strength",
        "learning_rate", "learning_rate_power",
    ]  # fmt: skip
    assert set(estimator.get_variable_names()) == {
        "global_step",
        *variables,
        *(f"{ftrl}{name}/{slot}" for name in variables for slot in ("accumulator", "linear")),
        *(ftrl + setting for setting in settings),
    }
    assert estimator.get_variable_value(ftrl + "learning_rate") == pytest.approx(0.2)


def test_weights_of_several_ids_are_averaged_and_examples_weighed(
    columns: Any, batches: Any, save: Any, losses: Any
) -> None:
    shapes = {
        MODEL + "word/weights": [3, 1],
        MODEL + "word_embedding/weights": [2, 1],
        MODEL + "word_embedding/embedding_weights": [4, 2],
        MODEL + "bias_weights": [1],
    }
    estimator = tfe.LinearRegressor(
        [columns["hashed"], columns["embedded"]],
        weight_column="weight",
        sparse_combiner="mean",
        loss_reduction=tf.losses.Reduction.SUM,
        warm_start_from=save(shapes),
    )
    found = losses(estimator, batches("number"))
    np.testing.assert_allclose(found, [12.763972, 8.634184, 3.819283, 4.169784], atol=2e-6)
    embedding = estimator.get_variable_value(MODEL + "word_embedding/embedding_weights")
    np.testing.assert_allclose(
        embedding.ravel(),
        [0.012699, -0.044547, -0.121602, -0.574428, -0.188638, 0.645493, 0.001557, -0.062197],
        atol=2e-6,
    )


@pytest.mark.parametrize(("combiner", "expected"), [("sum", 5.0), ("mean", 2.5)])
def test_an_example_with_several_ids_gets_the_sum_or_mean_of_their_weights(
    save: Any, tmp_path: Path, combiner: str, expected: float
) -> None:
    values = {
        MODEL + "id/weights": np.float32([[1], [2], [3]]),
        MODEL + "bias_weights": np.float32([10]),
    }
    save(values)
    column = tf.feature_column.categorical_column_with_identity("id", 3)
    estimator = tfe.LinearRegressor([column], model_dir=tmp_path, sparse_combiner=combiner)

    def input_fn() -> tf.data.Dataset:
        ids = tf.sparse.from_dense(tf.constant([[1, 2, -1]]) + 1)
        ids = tf.SparseTensor(ids.indices, ids.values - 1, ids.dense_shape)
        return tf.data.Dataset.from_tensors({"id": ids})

    assert next(estimator.predict(input_fn))["predictions"] == pytest.approx([10 + expected])


def test_bias_and_sparsity_are_summarized(
    columns: Any, batches: Any, read_events: Any, tmp_path: Path
) -> None:
    config = tfe.RunConfig(save_summary_steps=1)
    estimator = tfe.LinearRegressor([columns["age"], columns["word"]], tmp_path, config=config)
    estimator.train(batches("number"), steps=2)
    events = read_events(tmp_path)
    assert events["bias"][0] == (1, 0.0)
    # Of one age's and four words' weights that of "a" stays zero: its label is zero.
    assert [value for _, value in events["fraction_of_zero_weights"]] == pytest.approx([1.0, 0.2])


def test_a_regressor_has_a_row_of_weights_for_each_number(
    columns: Any, batches: Any, labels: Any
) -> None:
    two = np.concatenate([labels["number"], -labels["number"]], axis=1)
    estimator = tfe.LinearRegressor([columns["size"]], label_dimension=2)
    estimator.train(batches(two), steps=1)
    assert estimator.get_variable_value(MODEL + "size/weights").shape == (2, 2)
    bias = estimator.get_variable_value(MODEL + "bias_weights")
    assert bias[0] == pytest.approx(-bias[1])


def test_without_an_optimizer_the_rate_falls_with_the_number_of_columns(batches: Any) -> None:
    # One feature under many names, since columns of one name are refused.
    many = [tf.feature_column.numeric_column(f"age{i}") for i in range(36)]

    def input_fn() -> tf.data.Dataset:
        def rename(features: Any, label: Any) -> Any:
            return {column.key: features["age"] for column in many}, label

        return batches("number")().map(rename)

    estimator = tfe.LinearRegressor(many, optimizer=None).train(input_fn, steps=1)
    assert estimator.get_variable_value("training/Ftrl/learning_rate") == pytest.approx(1 / 6)


def test_features_may_be_plain_python_numbers(save: Any, tmp_path: Path) -> None:
    values = {MODEL + "age/weights": np.float32([[10]]), MODEL + "bias_weights": np.float32([5])}
    save(values)
    age = tf.feature_column.numeric_column("age")
    estimator = tfe.LinearRegressor([age], tmp_path, optimizer="SGD")
    metrics = estimator.evaluate(lambda: ({"age": ((17,),)}, ((5.0,),)), steps=1)
    assert metrics["loss"] == pytest.approx(170**2)
