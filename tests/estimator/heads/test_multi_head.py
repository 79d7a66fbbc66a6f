"""Several heads over one model."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1
import tf_keras

import tfdist.estimator as tfe

LABELS = {"first": np.array([1, 0, 0, 1]), "second": np.arange(8).reshape(4, 2)}
# Computed with tf.estimator 2.15.
LOSSES = {"first": 0.685001, "second": 17.90625}


HEADS: dict[str, Callable[[], tfe.Head]] = {
    "first": lambda: tfe.BinaryClassHead(name="first", weight_column="weight"),
    "second": lambda: tfe.RegressionHead(2, name="second"),
}


def _make(head_weights: list[float] | None = None) -> tfe.MultiHead:
    return tfe.MultiHead([make() for make in HEADS.values()], head_weights)


@pytest.fixture(params=["by head", "in one tensor"])
def logits(request: pytest.FixtureRequest, one_logit: Any, two_logits: Any) -> Any:
    if request.param == "by head":
        return {"first": one_logit, "second": two_logits}
    return np.concatenate([one_logit, two_logits], axis=1)


def test_it_adds_up_its_heads() -> None:
    head = _make()
    assert head.name == "first_second"
    assert head.logits_dimension == 3
    assert head.loss_reduction == "sum_over_batch_size"


def test_losses_are_added_with_the_heads_weights(logits: Any, features: Any) -> None:
    loss = _make([1.0, 0.5]).loss(LABELS, logits, features, regularization_losses=[1.5, 0.5])
    assert float(loss) == pytest.approx(LOSSES["first"] + 0.5 * LOSSES["second"] + 2, abs=1e-5)
    loss = _make().loss(LABELS, logits, features)
    assert float(loss) == pytest.approx(LOSSES["first"] + LOSSES["second"], abs=1e-5)


def test_metrics_are_those_of_the_heads_and_their_losses(
    evaluate: Any, one_logit: Any, two_logits: Any, features: Any
) -> None:
    logits = {"first": one_logit, "second": two_logits}
    _, metrics = evaluate(_make, features, logits, LABELS, [1.5, 0.5])
    expected = {"regularization_loss/first_second": 2.0}
    for name, make in HEADS.items():
        loss, own = evaluate(make, features, logits[name], LABELS[name])
        expected |= {f"loss/{name}": loss, **own}
    assert len(expected) == 15 and metrics == pytest.approx(expected)


def test_predictions_have_the_heads_name_in_their_key(logits: Any, two_logits: Any) -> None:
    found = _make().predictions(logits)
    np.testing.assert_array_equal(found["second", "predictions"], two_logits)
    assert found["first", "class_ids"].numpy().tolist() == [[1], [0], [1], [1]]
    chosen = [("first", "classes"), ("second", "predictions")]
    assert list(_make().predictions(logits, chosen)) == chosen


def test_every_head_is_exported_and_the_first_is_the_default(
    graph: tf.Graph, fetch: Any, logits: Any, two_logits: Any
) -> None:
    spec = _make().create_estimator_spec({}, tfe.ModeKeys.PREDICT, logits)
    outputs = spec.export_outputs
    assert set(outputs) == {
        "serving_default", "predict",
        "first", "first/classification", "first/regression", "first/predict",
        "second", "second/regression", "second/predict",
    }  # fmt: skip
    assert outputs["serving_default"] is outputs["first"]
    together = outputs["predict"].outputs
    assert {"first/probabilities", "second/predictions"} <= set(together)
    np.testing.assert_array_equal(fetch(together["second/predictions"]), two_logits)


def test_logits_with_more_leading_dimensions_are_split(features: Any) -> None:
    head = tfe.MultiHead([tfe.RegressionHead(2, name="a"), tfe.RegressionHead(3, name="b")])
    logits = np.arange(20, dtype=np.float32).reshape(2, 2, 5)
    found = head.predictions(logits)
    np.testing.assert_array_equal(found["a", "predictions"], logits[..., :2])
    np.testing.assert_array_equal(found["b", "predictions"], logits[..., 2:])


def test_losses_of_all_heads_and_their_sum_are_written(
    graph: tf.Graph, fetch: Any, logits: Any, features: Any
) -> None:
    spec = _make().create_estimator_spec(
        features,
        tfe.ModeKeys.TRAIN,
        logits,
        LABELS,
        train_op_fn=lambda loss: tf.identity(loss * 10),
        regularization_losses=[tf.constant(2.0)],
    )
    loss, trained, text = fetch([spec.loss, spec.train_op, v1.summary.merge_all()])
    assert trained == pytest.approx(10 * loss)
    summary = v1.summary.Summary.FromString(text)
    assert {value.tag: value.simple_value for value in summary.value} == pytest.approx(
        {
            "loss": sum(LOSSES.values()) + 2,
            "loss/first": LOSSES["first"],
            "loss/second": LOSSES["second"],
            "regularization_loss": 2.0,
        },
        abs=1e-5,
    )
    assert ("second", "predictions") in spec.predictions


def test_an_estimator_trains_evaluates_and_predicts(
    one_logit: Any, features: Any, tmp_path: Path
) -> None:
    def input_fn() -> tf.data.Dataset:
        return tf.data.Dataset.from_tensors((features, LABELS)).repeat(2)

    def model_fn(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
        head = _make()
        dense = tf_keras.layers.Dense(head.logits_dimension, kernel_initializer="zeros", name="d")
        return head.create_estimator_spec(
            features,
            mode,
            dense(features["x"]),
            labels,
            optimizer=tf_keras.optimizers.legacy.SGD(0.1),
            trainable_variables=dense.trainable_variables,
        )

    estimator = tfe.Estimator(model_fn, tmp_path).train(input_fn)
    metrics = estimator.evaluate(input_fn)
    assert metrics["global_step"] == 2
    assert metrics["loss"] == pytest.approx(metrics["loss/first"] + metrics["loss/second"])
    example = next(estimator.predict(input_fn))
    assert example["second", "predictions"].shape == (2,)


REFUSED: dict[str, Callable[[], Any]] = {
    r"Must specify heads. Given: \[\]": lambda: tfe.MultiHead([]),
    "All given heads must have name specified": lambda: tfe.MultiHead([tfe.RegressionHead()]),
    r"The names of heads must differ. Given: \['a', 'a'\]": lambda: tfe.MultiHead(
        [tfe.RegressionHead(name="a"), tfe.BinaryClassHead(name="a")]
    ),
    r"heads and head_weights must have the same size. Given len\(heads\): 1. "
    r"Given len\(head_weights\): 2": lambda: tfe.MultiHead([tfe.RegressionHead(name="a")], [1, 2]),
    "The loss_reduction must be the same for different heads": lambda: (
        tfe.MultiHead(
            [tfe.RegressionHead(name="a"), tfe.RegressionHead(name="b", loss_reduction="sum")]
        ).loss_reduction
    ),
    "labels must be a dict": lambda: _make().loss(np.ones(4), np.ones([4, 3])),
    r"labels has missing values for head\(s\): \['second'\]": lambda: _make().loss(
        {"first": np.ones(4)}, np.ones([4, 3])
    ),
    r"logits has missing values for head\(s\): \['first'\]": lambda: _make().predictions(
        {"second": np.ones([4, 2])}
    ),
    "given: predictions. Valid prediction keys include": lambda: _make().predictions(
        np.ones([4, 3]), ["predictions"]
    ),
    "Could not split logits": lambda: _make().predictions(np.ones([4, 4])),
    "You must provide a labels Tensor": lambda: _make().create_estimator_spec(
        {}, tfe.ModeKeys.EVAL, np.ones([4, 3])
    ),
    "mode=other unrecognized": lambda: _make().create_estimator_spec(
        {"weight": np.ones(4)}, "other", np.ones([4, 3], np.float32), LABELS
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_unusable_arguments_are_refused(message: str, graph: tf.Graph) -> None:
    with pytest.raises(ValueError, match=message):
        REFUSED[message]()
