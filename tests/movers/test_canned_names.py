"""Tensors of the canned estimators of v1 have the names that hooks know from TensorFlow 2.15."""

from collections.abc import Callable
from typing import Any


def test_losses_and_predictions_have_the_names_of_tf_estimator(
    here: Callable[..., Any], there: Callable[..., Any]
) -> None:
    found, expected = here("canned_names.py").result, there("canned_names.py").result
    for case, names in expected.items():
        assert found[case] == names, case
    assert found.keys() == expected.keys()
    deep = found["deep in train"]
    assert deep["loss"] == "dnn/head/weighted_loss/Sum:0"
    assert deep["predictions"]["probabilities"] == "dnn/head/predictions/probabilities:0"
    assert deep["summaries"]["average_loss"] == "dnn/head/truediv:0"
