"""Predictions and exports of heads."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfdist.estimator as tfe
from tfdist.estimator.export import ClassificationOutput, PredictOutput, RegressionOutput

DEFAULT = "serving_default"


def _plain(predictions: dict[Any, Any]) -> dict[Any, Any]:
    return {key: value.numpy().tolist() for key, value in predictions.items()}


def test_a_binary_head_predicts_from_one_logit(one_logit: Any) -> None:
    found = tfe.BinaryClassHead().predictions(one_logit)
    assert list(found) == [
        "logits", "logistic", "probabilities", "class_ids", "classes", "all_class_ids",
        "all_classes",
    ]  # fmt: skip
    yes = 1 / (1 + np.exp(-one_logit))
    np.testing.assert_allclose(found["logistic"], yes, rtol=1e-6)
    np.testing.assert_allclose(found["probabilities"], np.hstack([1 - yes, yes]), rtol=1e-6)
    assert found["class_ids"].numpy().tolist() == [[1], [0], [1], [1]]
    assert found["class_ids"].dtype == tf.int64
    assert found["classes"].numpy().tolist() == [[b"1"], [b"0"], [b"1"], [b"1"]]
    assert found["all_class_ids"].numpy().tolist() == [[0, 1]] * 4
    assert found["all_classes"].numpy().tolist() == [[b"0", b"1"]] * 4


def test_a_vocabulary_names_the_classes(three_logits: Any) -> None:
    head = tfe.MultiClassHead(3, label_vocabulary=("a", "b", "c"))
    found = head.predictions(three_logits, ["classes", "all_classes"])
    assert _plain(found) == {
        "classes": [[b"a"], [b"c"], [b"b"], [b"a"]],
        "all_classes": [[b"a", b"b", b"c"]] * 4,
    }


def test_a_multi_class_head_predicts_probabilities_and_ids(three_logits: Any) -> None:
    found = tfe.MultiClassHead(3).predictions(three_logits, ["class_ids", "probabilities"])
    exp = np.exp(three_logits)
    np.testing.assert_allclose(
        found["probabilities"], exp / exp.sum(axis=1, keepdims=True), rtol=1e-6
    )
    assert found["class_ids"].numpy().tolist() == [[0], [2], [1], [0]]
    assert len(found) == 2


def test_n_classes_may_be_a_tensor(three_logits: Any) -> None:
    head, plain = tfe.MultiClassHead(tf.constant(3)), tfe.MultiClassHead(3)
    assert _plain(head.predictions(three_logits)) == _plain(plain.predictions(three_logits))
    labels = [0, 2, 0, 1]
    assert float(head.loss(labels, three_logits)) == float(plain.loss(labels, three_logits))


def test_a_multi_label_head_predicts_each_class_alone(three_logits: Any) -> None:
    found = tfe.MultiLabelHead(3).predictions(three_logits)
    np.testing.assert_allclose(found["probabilities"], 1 / (1 + np.exp(-three_logits)), rtol=1e-6)
    assert found["classes"].numpy().tolist() == [[b"0", b"1", b"2"]] * 4
    assert list(found) == ["logits", "probabilities", "classes"]


def test_a_regression_head_predicts_its_logits(one_logit: Any) -> None:
    assert _plain(tfe.RegressionHead().predictions(one_logit)) == {
        "predictions": one_logit.tolist()
    }


@pytest.mark.parametrize(
    ("head", "link"),
    [
        (tfe.PoissonRegressionHead(), np.exp),
        (tfe.LogisticRegressionHead(), lambda logits: 1 / (1 + np.exp(-logits))),
        (
            tfe.RegressionHead(inverse_link_fn=lambda logits: logits - 10),
            lambda logits: logits - 10,
        ),
    ],
)
def test_an_inverse_link_makes_predictions_of_logits(head: Any, link: Any, one_logit: Any) -> None:
    found = head.predictions(one_logit)
    np.testing.assert_allclose(found["predictions"], link(one_logit), rtol=1e-6)
    np.testing.assert_array_equal(found["logits"], one_logit)


def test_integer_logits_are_cast(one_logit: Any) -> None:
    found = tfe.RegressionHead().predictions(np.array([[45], [41]]))
    assert found["predictions"].dtype == tf.float32


# Exports.


def _exported(head: tfe.Head, logits: Any) -> dict[str, Any]:
    spec = head.create_estimator_spec({}, tfe.ModeKeys.PREDICT, tf.constant(logits))
    assert spec.loss is None and spec.train_op is None and spec.eval_metric_ops == {}
    outputs: dict[str, Any] = spec.export_outputs
    return outputs


def test_a_binary_head_exports_classes_regression_and_predictions(
    graph: tf.Graph, fetch: Any, one_logit: Any
) -> None:
    outputs = _exported(tfe.BinaryClassHead(label_vocabulary=["no", "yes"]), one_logit)
    kinds = {name: type(output) for name, output in outputs.items()}
    assert kinds == {
        DEFAULT: ClassificationOutput,
        "classification": ClassificationOutput,
        "regression": RegressionOutput,
        "predict": PredictOutput,
    }
    classes, scores, value = fetch(
        [outputs[DEFAULT].classes, outputs[DEFAULT].scores, outputs["regression"].value]
    )
    assert classes.tolist() == [[b"no", b"yes"]] * 4
    np.testing.assert_allclose(scores[:, 1:], value, rtol=1e-6)
    assert "class_ids" in outputs["predict"].outputs


@pytest.mark.parametrize("head", [tfe.MultiClassHead(3), tfe.MultiLabelHead(3)])
def test_classifiers_export_classes_and_predictions(
    graph: tf.Graph, head: Any, three_logits: Any
) -> None:
    outputs = _exported(head, three_logits)
    assert set(outputs) == {DEFAULT, "classification", "predict"}
    assert outputs[DEFAULT].scores.shape == (4, 3)


def test_a_regression_head_exports_its_predictions(
    graph: tf.Graph, fetch: Any, one_logit: Any
) -> None:
    outputs = _exported(tfe.PoissonRegressionHead(), one_logit)
    assert set(outputs) == {DEFAULT, "regression", "predict"}
    np.testing.assert_allclose(fetch(outputs[DEFAULT].value), np.exp(one_logit), rtol=1e-6)
    assert set(outputs["predict"].outputs) == {"predictions", "logits"}


def test_tensors_have_the_names_that_frozen_graphs_are_asked_for(
    graph: tf.Graph, one_logit: Any
) -> None:
    spec = tfe.BinaryClassHead().create_estimator_spec({}, tfe.ModeKeys.PREDICT, one_logit)
    names = {key: tensor.name for key, tensor in spec.predictions.items()}
    assert names["probabilities"] == "head/predictions/probabilities:0"
    assert names["logistic"] == "head/predictions/logistic:0"
    assert names["classes"] == "head/predictions/str_classes:0"
