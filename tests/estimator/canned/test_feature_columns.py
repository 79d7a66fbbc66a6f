"""The features that parse_example must read for classifiers and regressors."""

from typing import Any

import pytest
import tensorflow as tf

import tfdist.estimator as tfe

FLOATS = tf.io.FixedLenFeature((1,), tf.float32)


def test_a_classifiers_label_is_one_integer(columns: Any) -> None:
    chosen = [columns["ages"], columns["word"]]
    assert tfe.classifier_parse_example_spec(chosen, "y", weight_column="w") == {
        "age": FLOATS,
        "word": tf.io.VarLenFeature(tf.string),
        "y": tf.io.FixedLenFeature((1,), tf.int64),
        "w": FLOATS,
    }


def test_a_regressors_label_is_numbers(columns: Any) -> None:
    weight = tf.feature_column.numeric_column("w", dtype=tf.float64)
    found = tfe.regressor_parse_example_spec(
        [columns["age"]], "y", label_default=[1.0, 2.0], label_dimension=2, weight_column=weight
    )
    assert found == {
        "age": FLOATS,
        "y": tf.io.FixedLenFeature((2,), tf.float32, [1.0, 2.0]),
        "w": tf.io.FixedLenFeature((1,), tf.float64),
    }


@pytest.mark.parametrize(
    ("label", "weight", "message"),
    [
        ("age", None, "label should not be used as feature. label_key: age"),
        ("y", "age", "weight_column should not be used as feature. weight_column: age"),
        ("y", 3, "weight_column should be an instance of tf.feature_column.numeric_column"),
    ],
)
def test_what_is_two_things_is_refused(columns: Any, label: str, weight: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tfe.classifier_parse_example_spec([columns["age"]], label, weight_column=weight)
