"""The outputs that a model offers for export, and their signatures."""

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1
import tf_keras

from tfdist.estimator.export import (
    ClassificationOutput,
    EvalOutput,
    PredictOutput,
    RegressionOutput,
    TrainOutput,
)
from tfdist.estimator.export.outputs import with_serving_default

pytestmark = pytest.mark.usefixtures("graph")


def fed(dtype: tf.DType = tf.float32, name: str | None = None) -> tf.Tensor:
    return v1.placeholder(dtype, [None], name)


def names(infos: Any) -> dict[str, str]:
    return {key: info.name for key, info in infos.items()}


def test_a_classification_takes_examples_and_gives_classes_and_scores() -> None:
    output = ClassificationOutput(scores=fed(name="s"), classes=fed(tf.string, "c"))
    signature = output.as_signature_def({"examples": fed(tf.string, "e")})
    assert signature.method_name == "tensorflow/serving/classify"
    assert names(signature.inputs) == {"inputs": "e:0"}
    assert names(signature.outputs) == {"classes": "c:0", "scores": "s:0"}


def test_a_classification_may_have_scores_or_classes_alone() -> None:
    examples = {"examples": fed(tf.string)}
    assert set(ClassificationOutput(fed()).as_signature_def(examples).outputs) == {"scores"}
    only_classes = ClassificationOutput(classes=fed(tf.string))
    assert set(only_classes.as_signature_def(examples).outputs) == {"classes"}


def test_a_regression_takes_examples_and_gives_numbers() -> None:
    signature = RegressionOutput(fed(name="v")).as_signature_def({"x": fed(tf.string, "e")})
    assert signature.method_name == "tensorflow/serving/regress"
    assert names(signature.inputs) == {"inputs": "e:0"}
    assert names(signature.outputs) == {"outputs": "v:0"}


def test_a_prediction_takes_and_gives_anything_by_name() -> None:
    output = PredictOutput({"a": fed(name="a"), ("head", "b"): fed(tf.int32, "b")})
    signature = output.as_signature_def({"x": fed(name="x"), "y": fed(tf.string, "y")})
    assert signature.method_name == "tensorflow/serving/predict"
    assert names(signature.inputs) == {"x": "x:0", "y": "y:0"}
    assert names(signature.outputs) == {"a": "a:0", "head/b": "b:0"}
    alone = fed()
    assert PredictOutput(alone).outputs == {"output": alone}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ClassificationOutput(), "At least one of `scores` and `classes`"),
        (lambda: ClassificationOutput(scores=fed(tf.int32)), "scores must be a float32 Tensor"),
        (lambda: ClassificationOutput(scores=[0.5]), "scores must be a float32 Tensor"),
        (lambda: ClassificationOutput(classes=fed()), "classes must be a string Tensor"),
        (lambda: RegressionOutput(fed(tf.int64)), "value must be a float32 Tensor"),
        (lambda: RegressionOutput(1.0), "value must be a float32 Tensor"),
        (lambda: PredictOutput({1: fed()}), "Prediction output key must be a string; got 1"),
        (lambda: PredictOutput({"a": 1}), "Prediction output value must be a Tensor; got 1"),
        (lambda: PredictOutput(None), "Prediction output value must be a Tensor"),
        (lambda: EvalOutput(loss={1: fed()}), "loss output key must be a string"),
        (lambda: EvalOutput(fed(), [1]), "predictions output value must be a Tensor"),
        (lambda: EvalOutput(metrics={"m": (1, fed())}), "metrics/m output value must be a Tensor"),
        (lambda: EvalOutput(metrics={"m": (fed(), 1)}), "update_op must be a Tensor or Operation"),
        (lambda: EvalOutput(metrics={1: (fed(), fed())}), "metrics output key must be a string"),
    ],
)
def test_other_types_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("output", [ClassificationOutput, RegressionOutput])
def test_classification_and_regression_want_one_string_input(output: Any) -> None:
    message = "can only accept a single tensor input of type tf.string"
    for inputs in ({}, {"x": fed()}, {"x": fed(tf.string), "y": fed(tf.string)}):
        with pytest.raises(ValueError, match=message):
            output(fed()).as_signature_def(inputs)


@pytest.mark.parametrize(("output", "method"), [(TrainOutput, "training"), (EvalOutput, "eval")])
def test_a_supervised_signature_has_loss_predictions_and_metrics(output: Any, method: str) -> None:
    made = output(
        loss=fed(name="loss"),
        predictions={"predictions_a": fed(name="a"), "b": fed(name="b")},
        metrics={
            "mae": (fed(name="mae"), fed(name="mae_update")),
            "metrics_own": (fed(name="own"), tf.no_op()),
            ("head", "auc"): (fed(name="auc"), fed(name="auc_update")),
        },
    )
    signature = made.as_signature_def({"x": fed(name="x"), "label": fed(name="y")})
    assert signature.method_name == f"tensorflow/supervised/{method}"
    assert names(signature.inputs) == {"x": "x:0", "label": "y:0"}
    assert names(signature.outputs) == {
        "loss": "loss:0",
        "predictions_a": "a:0",
        "predictions/b": "b:0",
        "metrics/mae/value": "mae:0",
        "metrics/mae/update_op": "mae_update:0",
        "metrics_own/value": "own:0",
        "metrics_own/update_op": "metric_op_wrapper:0",  # An op is no tensor: it gets one.
        "metrics/head/auc/value": "auc:0",
        "metrics/head/auc/update_op": "auc_update:0",
    }


def test_one_predicted_tensor_and_one_metric_need_no_names() -> None:
    metric = tf_keras.metrics.Mean()  # A Keras object will do.
    metric.update_state(1.0)
    for one in ((fed(), fed()), metric):
        made = EvalOutput(fed(), fed(), one)
        assert set(made.predictions) == {"predictions"}
        assert set(made.metrics) == {"metrics/value", "metrics/update_op"}


def test_what_is_not_given_is_none_and_gives_no_output() -> None:
    made = EvalOutput()
    assert (made.loss, made.predictions, made.metrics) == (None, None, None)
    assert not made.as_signature_def({"x": fed()}).outputs
    with pytest.raises(ValueError, match="inputs cannot be None or empty"):
        made.as_signature_def({})


def test_the_predictions_or_a_single_output_are_served_by_default() -> None:
    tensor = fed()
    (name, output), *others = with_serving_default(None, {"a": tensor}).items()
    assert (name, output.outputs, others) == ("serving_default", {"a": tensor}, [])
    found = with_serving_default({"mine": output}, None)
    assert found == {"mine": output, "serving_default": output}


def test_export_outputs_that_cannot_be_served_are_refused() -> None:
    output = PredictOutput(fed())
    with pytest.raises(ValueError, match="none of them are specified as the default"):
        with_serving_default({"a": output, "b": output}, None)
    with pytest.raises(TypeError, match="`export_outputs` must be dict"):
        with_serving_default([output], None)
    with pytest.raises(TypeError, match="must be ExportOutput objects"):
        with_serving_default({"a": fed()}, None)
