"""Losses and metrics of each head; the numbers were computed with tf.estimator 2.15."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfdist.estimator as tfe

PENALTIES = [1.5, 0.5]
HEADS: dict[str, Callable[[], tfe.Head]] = {
    "binary": lambda: tfe.BinaryClassHead(weight_column="weight", thresholds=[0.25, 0.6]),
    "fractions": lambda: tfe.BinaryClassHead(),
    "classes": lambda: tfe.MultiClassHead(3, weight_column="weight"),
    "labels": lambda: tfe.MultiLabelHead(
        3, weight_column="weight", thresholds=[0.6], classes_for_class_based_metrics=[1]
    ),
    "regression": lambda: tfe.RegressionHead(2, weight_column="weight"),
    "poisson": lambda: tfe.PoissonRegressionHead(weight_column="weight"),
    "logistic": lambda: tfe.LogisticRegressionHead(weight_column="weight"),
}
LABELS: dict[str, Any] = {
    "binary": np.array([1, 0, 0, 1]),
    "fractions": np.array([[0.2], [0.9], [0.0], [1.0]]),
    "classes": np.array([0, 2, 0, 1]),
    "labels": np.array([[1, 0, 0], [0, 1, 1], [1, 1, 0], [0, 0, 1]]),
    "regression": np.arange(8).reshape(4, 2),
    "poisson": np.array([1, 0, 3, 2]),
    "logistic": np.array([1, 0.5, 0, 1]),
}
# The loss, and the metrics.
EXPECTED: dict[str, tuple[float, dict[str, float]]] = {
    "binary": (0.685001, {
        "accuracy": 0.888889, "accuracy/positive_threshold_0.25": 0.444444,
        "accuracy/positive_threshold_0.6": 0.666667, "accuracy_baseline": 0.555556,
        "auc": 0.8, "auc_precision_recall": 0.597641, "average_loss": 0.60889,
        "label/mean": 0.444444, "precision": 0.8,
        "precision/positive_threshold_0.25": 0.444444,
        "precision/positive_threshold_0.6": 0.666667, "prediction/mean": 0.480648,
        "recall": 1.0, "recall/positive_threshold_0.25": 1.0,
        "recall/positive_threshold_0.6": 0.5,
    }),
    "fractions": (1.197552, {
        "accuracy": 0.25, "accuracy_baseline": 0.525, "auc": 0.0,
        "auc_precision_recall": 0.537902, "average_loss": 1.197551, "label/mean": 0.525,
        "precision": 0.666667, "prediction/mean": 0.583594, "recall": 0.666667,
    }),
    "classes": (1.145275, {"accuracy": 0.666667, "average_loss": 1.018023}),
    "labels": (0.664636, {
        "accuracy/positive_threshold_0.6": 0.888889, "auc": 0.818681, "auc/class1": 1.0,
        "auc_precision_recall": 0.741789, "auc_precision_recall/class1": 1.0,
        "average_loss": 0.590787, "precision/positive_threshold_0.6": 0.866667,
        "probability_mean/class1": 0.589712, "recall/positive_threshold_0.6": 0.928571,
    }),
    "regression": (19.078123, {
        "average_loss": 16.958334, "label/mean": 3.166667, "prediction/mean": 0.194444,
    }),
    "poisson": (1.22422, {"average_loss": 1.088196, "label/mean": 1.0, "prediction/mean": 1.63623}),
    "logistic": (0.935001, {
        "average_loss": 0.831112, "label/mean": 0.666667, "prediction/mean": 0.480648,
    }),
}  # fmt: skip


@pytest.fixture
def logits_of(
    one_logit: np.ndarray, two_logits: np.ndarray, three_logits: np.ndarray
) -> Callable[[str], np.ndarray]:
    by_size = {1: one_logit, 2: two_logits, 3: three_logits}
    return lambda kind: by_size[HEADS[kind]().logits_dimension]


@pytest.mark.parametrize("kind", HEADS)
def test_loss_and_metrics_are_those_of_tf_estimator(
    evaluate: Any, features: Any, logits_of: Any, kind: str
) -> None:
    loss, metrics = evaluate(HEADS[kind], features, logits_of(kind), LABELS[kind])
    expected_loss, expected = EXPECTED[kind]
    assert loss == pytest.approx(expected_loss, abs=2e-6)
    assert metrics == pytest.approx(expected, abs=2e-6)


def test_regularization_losses_are_added_and_measured(
    evaluate: Any, features: Any, logits_of: Any
) -> None:
    loss, metrics = evaluate(
        HEADS["classes"], features, logits_of("classes"), LABELS["classes"], PENALTIES
    )
    assert loss == pytest.approx(3.145275, abs=2e-6)
    assert metrics == pytest.approx({**EXPECTED["classes"][1], "regularization_loss": 2.0})


def test_metrics_of_a_head_with_a_name_have_it_as_suffix(
    evaluate: Any, features: Any, three_logits: Any
) -> None:
    _, metrics = evaluate(
        lambda: tfe.MultiClassHead(3, name="kind"), features, three_logits, [0, 2, 0, 1], PENALTIES
    )
    assert set(metrics) == {"accuracy/kind", "average_loss/kind", "regularization_loss/kind"}


def test_metrics_add_up_over_batches(features: Any, one_logit: Any) -> None:
    head = tfe.BinaryClassHead()
    metrics = head.metrics()
    for labels in ([1, 1, 1, 1], [1, 1, 0, 0]):
        head.update_metrics(metrics, features, one_logit, np.array(labels))
    assert float(metrics["label/mean"].result()) == 0.75
    assert float(metrics["accuracy_baseline"].result()) == 0.75
    assert float(metrics["accuracy"].result()) == 4 / 8


@pytest.mark.parametrize(("reduction", "times"), [("sum", 4), ("auto", 1)])
def test_the_loss_is_a_sum_over_the_batch_or_a_mean(
    evaluate: Any, features: Any, logits_of: Any, reduction: str, times: int
) -> None:
    def make() -> tfe.Head:
        return tfe.MultiClassHead(3, weight_column="weight", loss_reduction=reduction)

    loss, _ = evaluate(make, features, logits_of("classes"), LABELS["classes"])
    assert loss == pytest.approx(times * 1.145275, abs=1e-5)


WORDS = ["a", "b", "c"]


def _sparse(values: Any) -> tf.SparseTensor:
    """The labels of "labels": the classes that each example has."""
    where = [[0, 0], [1, 0], [1, 1], [2, 0], [2, 1], [3, 0]]
    return tf.SparseTensor(where, np.array(values), [4, 2])


@pytest.mark.parametrize(
    ("kind", "make", "labels"),
    [
        (
            "classes",
            lambda: tfe.MultiClassHead(3, "weight", label_vocabulary=WORDS),
            lambda: np.array(["a", "c", "a", "b"]),
        ),
        (
            "binary",
            lambda: tfe.BinaryClassHead("weight", label_vocabulary=("no", "yes")),
            lambda: np.array([["yes"], ["no"], ["no"], ["yes"]]),
        ),
        ("labels", lambda: tfe.MultiLabelHead(3, "weight"), lambda: _sparse([0, 1, 2, 0, 1, 2])),
        (
            "labels",
            lambda: tfe.MultiLabelHead(3, "weight", label_vocabulary=WORDS),
            lambda: _sparse(["a", "b", "c", "a", "b", "c"]),
        ),
    ],
    ids=["words", "two words", "sparse ids", "sparse words"],
)
def test_labels_may_be_words_and_sparse(
    evaluate: Any, features: Any, logits_of: Any, kind: str, make: Any, labels: Any
) -> None:
    loss, metrics = evaluate(make, features, logits_of(kind), labels())
    expected_loss, expected = EXPECTED[kind]
    assert loss == pytest.approx(expected_loss, abs=2e-6)
    assert metrics == pytest.approx({name: expected[name] for name in metrics}, abs=2e-6)


def test_classes_measured_alone_may_be_words(
    evaluate: Any, features: Any, three_logits: Any
) -> None:
    def make() -> tfe.Head:
        return tfe.MultiLabelHead(
            3, "weight", label_vocabulary=["a", "b", "c"], classes_for_class_based_metrics=["b"]
        )

    _, metrics = evaluate(make, features, three_logits, LABELS["labels"])
    assert metrics["probability_mean/b"] == pytest.approx(0.589712, abs=2e-6)
    assert {"auc/b", "auc_precision_recall/b"} <= set(metrics)


# Losses of the user's own.


def test_a_loss_fn_gets_labels_as_numbers_and_features(
    evaluate: Any, features: Any, one_logit: Any
) -> None:
    def loss_fn(labels: Any, logits: Any, features: Any) -> Any:
        return labels * 10 + tf.convert_to_tensor(features["x"])

    def make() -> tfe.Head:
        return tfe.BinaryClassHead("weight", label_vocabulary=["no", "yes"], loss_fn=loss_fn)

    labels = np.array(["yes", "no", "yes", "no"])
    loss, metrics = evaluate(make, features, one_logit, labels)
    # Weights 1, 2, 0.5, 1 times losses 11, 1, 11, 1.
    assert loss == pytest.approx((11 + 2 + 5.5 + 1) / 4)
    assert metrics["average_loss"] == pytest.approx((11 + 2 + 5.5 + 1) / 4.5)


# Weights.


def test_a_numeric_column_may_normalize_weights(
    evaluate: Any, features: Any, one_logit: Any
) -> None:
    column = tf.feature_column.numeric_column("weight", normalizer_fn=lambda weight: weight * 3)
    loss, _ = evaluate(
        lambda: tfe.LogisticRegressionHead(column), features, one_logit, LABELS["logistic"]
    )
    assert loss == pytest.approx(3 * 0.935001, abs=1e-5)


def test_a_regression_may_weigh_each_of_its_numbers(evaluate: Any, two_logits: Any) -> None:
    weights = np.array([[1, 0], [0, 0], [0, 0], [2, 0]], np.float32)
    loss, metrics = evaluate(
        lambda: tfe.RegressionHead(2, tf.feature_column.numeric_column("weight", (2,))),
        {"weight": weights},
        two_logits,
        np.zeros([4, 2]),
    )
    assert loss == pytest.approx((1 * 1.0 + 2 * 4.0) / 8)
    assert metrics["average_loss"] == pytest.approx((1 * 1.0 + 2 * 4.0) / 3)
    assert metrics["prediction/mean"] == pytest.approx((1 * 1.0 + 2 * -2.0) / 3)


def test_more_leading_dimensions_are_more_examples(
    evaluate: Any, features: Any, three_logits: Any
) -> None:
    weights = {"weight": features["weight"].reshape(2, 2)}
    loss, metrics = evaluate(
        HEADS["classes"], weights, three_logits.reshape(2, 2, 3), np.array([[0, 2], [0, 1]])
    )
    assert loss == pytest.approx(1.145275, abs=2e-6)
    assert metrics == pytest.approx(EXPECTED["classes"][1], abs=2e-6)


def test_logits_that_are_nan_give_a_loss_that_is_nan(features: Any, one_logit: Any) -> None:
    loss = tfe.BinaryClassHead().loss(LABELS["binary"], one_logit * np.nan, features)
    assert np.isnan(float(loss))


def test_features_are_not_needed_without_weights(one_logit: Any) -> None:
    loss = tfe.RegressionHead().loss(np.array([0.5, -1, 2, 1.25]), one_logit)
    assert float(loss) == pytest.approx(0.25)


def test_a_poisson_loss_may_leave_out_its_constant_term(one_logit: Any) -> None:
    labels = np.array([[1], [0], [3], [2]], np.float32)
    loss = tfe.PoissonRegressionHead(compute_full_loss=False).loss(labels, one_logit)
    assert float(loss) == pytest.approx(np.mean(np.exp(one_logit) - labels * one_logit))
