"""Refusals of a pipeline: its spec, its model, its input, its metrics."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1
from staged_model import (
    COUNT,
    MICRO,
    OPTIMIZERS,
    STAGES,
    X,
    Y,
    as_trained,
    batches,
    first_stage,
    make_estimator,
    make_pipelined,
    mean_loss,
    second_stage,
    third_stage,
)

import tfdist.estimator as tfe
from tfdist.estimator import OptimizerFunctionOutput, PipelineEstimatorSpec
from tfdist.strategies import DeviceError
from tfdist.training import ClippedOptimizer

# What is refused, when the spec is made.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "fit"}, "Unknown mode: 'fit'"),
        ({"computational_stages": [first_stage]}, "at least two computational stages, got 1"),
        ({"computational_stages": first_stage}, "must be a list of functions, got <function first"),
        ({"gradient_accumulation_count": 4}, r"is 4, and .* of 3 stages needs at least 5 \(2 x 3"),
        ({"gradient_accumulation_count": None}, "must contain gradient_accumulation_count when"),
        ({"gradient_accumulation_count": 0}, "an integer of at least 1, got 0"),
        ({"gradient_accumulation_count": True}, "an integer of at least 1, got True"),
        ({"optimizer_function": None}, "must contain optimizer_function when training"),
        ({"optimizer_function": 3}, "optimizer_function must be a function, got 3"),
        ({"mode": "eval", "eval_metrics_fn": None}, "must contain eval_metrics_fn when evaluating"),
        ({"device_mapping": [0, 1]}, "device_mapping has 2 devices for 3 stages"),
        ({"device_mapping": [0, 1, -1]}, r"a list of integers from 0 on, got \[0, 1, -1\]"),
        ({"device_mapping": [0, 1, 0]}, r'\[0, 1, 0\] has a device twice, .* "grouped" or'),
        ({"pipeline_schedule": "both"}, "must be 'grouped', 'interleaved' or 'sequential', got"),
        ({"reduction_method": "max"}, 'must be "mean" or "sum", got \'max\''),
    ],
)
def test_a_spec_that_does_not_fit_is_refused(options: dict[str, Any], message: str) -> None:
    settings = {
        "mode": "train",
        "computational_stages": STAGES,
        "gradient_accumulation_count": COUNT,
        "optimizer_function": print,
    }
    with pytest.raises((TypeError, ValueError), match=message):
        PipelineEstimatorSpec(**{**settings, **options})


def test_fewer_micro_batches_do_one_after_the_other(tmp_path: Path) -> None:
    model_fn = make_pipelined(gradient_accumulation_count=1, pipeline_schedule="sequential")
    estimator = make_estimator(model_fn, tmp_path).train(batches(MICRO), steps=2)
    assert estimator.get_variable_value("global_step") == 2


class _OwnGradients(v1.train.GradientDescentOptimizer):  # type: ignore[misc,name-defined]
    def compute_gradients(self, loss: Any, *args: Any, **kwargs: Any) -> Any:
        return super().compute_gradients(loss * 2, *args, **kwargs)


@pytest.mark.parametrize(
    ("opt", "loss", "message"),
    [
        ("sgd", 1.0, "opt of OptimizerFunctionOutput must be an optimizer .*, got 'sgd'"),
        (None, 1.0, "loss of OptimizerFunctionOutput must be a tensor, got 1.0"),
        (None, [1.0], r"must be a scalar of floating type, got shape \(1,\) of float32"),
        (_OwnGradients(0.1), 1.0, "_OwnGradients has a compute_gradients of its own"),
        (ClippedOptimizer(_OwnGradients(0.1)), 1.0, "ClippedOptimizer has a compute_gradients of"),
    ],
    ids=["opt", "loss", "shape", "own", "wrapped"],
)
def test_an_output_of_another_kind_is_refused(opt: Any, loss: Any, message: str) -> None:
    with tf.Graph().as_default(), pytest.raises((TypeError, ValueError), match=message):
        OptimizerFunctionOutput(
            OPTIMIZERS["sgd"]() if opt is None else opt,
            tf.constant(loss) if isinstance(loss, list) else loss,
        )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda: {"loss_weight": -1.0}, r"loss_weight must not be negative, got -1\.0"),
        (lambda: {"loss_weight": tf.ones([1])}, r"must be a scalar number, got shape \(1,\)"),
        (lambda: {"metrics": [1.0]}, "must be a dict of name to tensor, got"),
        (lambda: {"metrics": {"a": 1.0}}, "training metric 'a' must be Tensor, given: 1.0"),
        (lambda: {"metrics": {"a": tf.ones([1])}}, r"'a' must be a scalar of floating .* \(1,\)"),
        (lambda: {"metrics": {"a b": 1.0}}, "'a b' is no name for a training metric: use letters"),
        (lambda: {"metrics": {"loss": 1.0}}, "'loss' is no name .* The loss is reported by itself"),
    ],
)
def test_a_loss_weight_or_metric_of_another_kind_is_refused(
    graph: tf.Graph, given: Callable[[], dict[str, Any]], message: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        OptimizerFunctionOutput(OPTIMIZERS["sgd"](), tf.constant(1.0), **given())


# What is refused, when the model is built.


def _reports_a_taken_name(logits: Any, labels: Any) -> OptimizerFunctionOutput:
    mean = tf.reduce_mean(logits, name="mean")
    return OptimizerFunctionOutput(OPTIMIZERS["sgd"](), mean, metrics={"mean": mean})


def _has_a_negative_weight(logits: Any, labels: Any) -> OptimizerFunctionOutput:
    loss = mean_loss(logits, labels)
    return OptimizerFunctionOutput(OPTIMIZERS["sgd"](), loss, loss_weight=-loss)


def test_accumulation_of_the_device_is_refused(tmp_path: Path) -> None:
    config = tfe.RunConfig(device=tfe.DeviceConfig(gradient_accumulation=2))
    message = "gradient_accumulation of DeviceConfig is 2, and a pipeline has its own: .*which is 6"
    with pytest.raises(ValueError, match=message):
        tfe.Estimator(make_pipelined(), tmp_path, config).train(batches(MICRO))


def _takes_features(features: Any, labels: Any, mode: str) -> Any:
    return make_pipelined()(mode)


def _makes_another_spec(mode: str) -> Any:
    return tfe.EstimatorSpec(mode, loss=tf.constant(1.0), train_op=tf.no_op())


def _has_another_mode(mode: str) -> Any:
    return make_pipelined()(tfe.ModeKeys.PREDICT)


def _uses_the_body(mode: str) -> Any:
    factor = tf.exp(v1.get_variable("log", [], tf.float32))
    return make_pipelined([first_stage, lambda x, y: (x * factor, y), third_stage])(mode)


def _uses_an_updater(x: Any, y: Any) -> Any:
    v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, v1.print("seen"))
    return x, y


@pytest.mark.parametrize(
    ("model_fn", "message"),
    [
        (_takes_features, "PipelineEstimatorSpec must not have `features` or `labels`"),
        (_makes_another_spec, "without features must return a PipelineEstimatorSpec, got"),
        (_has_another_mode, "mode 'train' and returned a PipelineEstimatorSpec for 'infer'"),
        (_uses_the_body, r"a stage uses Exp at test_pipelined_refusals.py:\d+: .*outside of all"),
        (
            make_pipelined(optimizer_function=mean_loss),
            "must return .*OptimizerFunctionOutput, got <tf",
        ),
        (
            make_pipelined([_uses_an_updater, first_stage]),
            "UPDATE_OPS has PrintV2 at test_pipeline",
        ),
        (
            make_pipelined(optimizer_function=_reports_a_taken_name),
            "metric 'mean' gets a tensor of that name, and the model has one of that name already",
        ),
        (
            make_pipelined(optimizer_function=_has_a_negative_weight, reduction_method="sum"),
            'reduction_method="sum" adds up .* Set reduction_method="mean", or leave loss_weight',
        ),
        (
            make_pipelined([lambda x, y: (x[:, :3], y), lambda x, y: (x, y)]),
            "no variable of the pipeline gets a gradient",
        ),
    ],
    ids=["features", "spec", "mode", "body", "output", "update", "name", "sum", "nothing"],
)
def test_a_model_that_is_no_pipeline_is_refused(
    tmp_path: Path, model_fn: Any, message: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        make_estimator(model_fn, tmp_path).train(batches(MICRO), steps=1)


def test_a_negative_loss_weight_ends_the_training(tmp_path: Path) -> None:
    estimator = make_estimator(make_pipelined(optimizer_function=_has_a_negative_weight), tmp_path)
    with pytest.raises(tf.errors.InvalidArgumentError, match="loss_weight must not be negative"):
        estimator.train(batches(MICRO), steps=1)


def test_what_v1_switches_off_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def old(x: Any, y: Any) -> Any:
        return x * v1.get_variable("old", [], use_resource=False), y

    estimator = make_estimator(make_pipelined([old, first_stage]), tmp_path)
    with pytest.raises(ValueError, match=r"needs resource variables, and 'old' is none\. Call"):
        estimator.train(batches(MICRO), steps=1)
    monkeypatch.setattr(v1, "control_flow_v2_enabled", lambda: False)
    with pytest.raises(ValueError, match="iterations_per_loop=3 with a pipeline needs"):
        make_estimator(make_pipelined(), tmp_path, loops=3).train(batches(MICRO))


@pytest.mark.parametrize(
    ("input_fn", "message"),
    [
        (lambda: (tf.constant(X), tf.constant(Y)), "must return a tf.data.Dataset .*, got tuple"),
        (
            lambda: tf.data.Dataset.from_tensor_slices((X, Y)).batch(MICRO),
            r"all have one shape, and the input has TensorSpec\(shape=\(None, 5\)",
        ),
    ],
    ids=["tensors", "size"],
)
def test_an_input_without_micro_batches_is_refused(
    tmp_path: Path, input_fn: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make_estimator(make_pipelined(), tmp_path).train(input_fn, steps=1)


def test_too_few_devices_for_the_replicas_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda _: ["GPU"] * 4)
    estimator = make_estimator(make_pipelined(), tmp_path, replicas=2)
    message = (
        r"2 replicas of 3 devices from /device:GPU:0 on need 6 GPUs: this machine has "
        r"/device:GPU:0, .*, /device:GPU:3\. Set num_replicas to 1 at most, or device to"
    )
    with pytest.raises(DeviceError, match=message):
        estimator.train(batches(MICRO), steps=1)


@pytest.mark.parametrize(
    ("found", "kind", "message"),
    [
        (1.0, TypeError, "eval_metrics_fn must return a dict, got 1.0"),
        ({"accuracy": 1.0}, KeyError, r"must contain 'loss', a tensor; it has \['accuracy'\]"),
    ],
    ids=["kind", "loss"],
)
def test_metrics_of_another_kind_are_refused(
    trained_pipeline: tfe.Estimator, found: Any, kind: Any, message: str
) -> None:
    estimator = as_trained(make_pipelined(eval_metrics_fn=lambda *_: found), trained_pipeline)
    with pytest.raises(kind, match=message):
        estimator.evaluate(batches(8))


def test_several_predictions_without_a_dict_are_refused(trained_pipeline: tfe.Estimator) -> None:
    stages = [first_stage, second_stage, lambda x, y=0: (third_stage(x), y)]
    estimator = as_trained(make_pipelined(computational_stages=stages), trained_pipeline)
    with pytest.raises(ValueError, match=r"exactly one prediction tensor, or a dict .*, got 2"):
        next(estimator.predict(batches(8, X)))
