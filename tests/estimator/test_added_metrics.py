"""`add_metrics` and `call_logit_fn`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

import tfdist.estimator as tfe
from tfdist.estimator.experimental import call_logit_fn

Make = Callable[..., Any]


def _input_fn() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensors(({"x": [1.0, 3.0]}, [5.0, 7.0]))


def _estimator(
    model_dir: Path, kind: str = "eval_metric_ops", make: Any = tfe.Estimator, **sizes: int
) -> tfe.Estimator:
    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> tfe.EstimatorSpec:
        def metrics(x: Any) -> dict[str, Any]:
            return {"mean": v1.metrics.mean(x), "kept": v1.metrics.mean(2 * x)}

        x = features["x"]
        own = {kind: metrics(x) if kind == "eval_metric_ops" else (metrics, [x])}
        if mode != tfe.ModeKeys.EVAL:
            own = {}
        loss = tf.reduce_mean(labels) * params["scale"]
        return tfe.EstimatorSpec(
            mode, predictions={"p": -x}, loss=loss, train_op=_count(mode), **own
        )

    estimator: tfe.Estimator = make(model_fn, model_dir, params={"scale": 2.0}, **sizes)
    return estimator


def _count(mode: str) -> Any:
    return None if mode != "train" else v1.assign_add(v1.train.get_global_step(), 1)


@pytest.mark.parametrize("kind", ["eval_metric_ops", "eval_metrics"])
def test_metrics_are_added_and_replace_those_of_the_same_name(tmp_path: Path, kind: str) -> None:
    seen: dict[str, Any] = {}

    def metric_fn(predictions: Any, config: Any, labels: Any, features: Any) -> dict[str, Any]:
        seen.update(config=config)
        return {
            "mean": v1.metrics.mean(predictions["p"]),
            "label": v1.metrics.mean(labels),
            "feature": v1.metrics.mean(features["x"]),
        }

    first = _estimator(tmp_path, kind)
    estimator = tfe.add_metrics(first, metric_fn)
    assert estimator.model_dir == first.model_dir
    assert estimator.train(_input_fn, steps=1).get_variable_value("global_step") == 1
    assert estimator.evaluate(_input_fn) == {
        "mean": -2.0, "kept": 4.0, "label": 6.0, "feature": 2.0, "loss": 12.0, "global_step": 1
    }  # fmt: skip
    assert seen["config"].model_dir == str(tmp_path)
    assert first.evaluate(_input_fn)["mean"] == 2.0


def test_the_class_the_params_and_the_batch_sizes_are_those_of_the_other(tmp_path: Path) -> None:
    seen: list[Any] = []

    def input_fn(params: Any) -> tf.data.Dataset:
        seen.append(params)
        return _input_fn()

    first = _estimator(tmp_path, make=tfe.v1.Estimator, eval_batch_size=2)
    added = tfe.add_metrics(first, lambda: {})
    assert type(added) is tfe.v1.Estimator  # It has export_savedmodel.
    added.evaluate(input_fn)
    assert seen == [{"scale": 2.0, "batch_size": 2}]


def test_keras_metrics_can_be_added(tmp_path: Path) -> None:
    def metric_fn(labels: Any, predictions: Any) -> dict[str, Any]:
        mean = tf.keras.metrics.Mean()
        mean.update_state(predictions["p"])
        return {"keras": mean}

    estimator = tfe.add_metrics(_estimator(tmp_path), metric_fn)
    assert estimator.evaluate(_input_fn)["keras"] == -2.0


def test_a_metric_fn_with_other_arguments_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has following not expected args: \['logits'\]"):
        tfe.add_metrics(_estimator(tmp_path), lambda logits: {})


def test_a_warm_start_is_kept(tmp_path: Path, dense: Make, numbers: Make, weights: Make) -> None:
    config = tfe.RunConfig(save_summary_steps=None, log_step_count_steps=None)
    first = tfe.Estimator(dense(), tmp_path / "a", config).train(numbers(), steps=3)
    second = tfe.Estimator(dense(), tmp_path / "b", config, warm_start_from=str(tmp_path / "a"))
    added = tfe.add_metrics(second, lambda: {})
    assert added.evaluate(numbers(batches=1))["mae"] == first.evaluate(numbers(batches=1))["mae"]


# call_logit_fn.


def test_a_logit_fn_gets_what_it_names(graph: tf.Graph) -> None:
    logits = tf.constant([1.0])

    def logit_fn(config: Any, features: Any, mode: str, params: Any) -> Any:
        assert (features, mode, params, config) == ("f", "train", "p", "c")
        return logits

    assert call_logit_fn(logit_fn, "f", "train", "p", "c") is logits
    assert call_logit_fn(lambda features: {"a": logits}, "f", "train", "p", "c") == {"a": logits}


@pytest.mark.parametrize("result", [None, [1.0], {"a": 1.0}, {1: tf.constant(1.0)}])
def test_logits_of_another_type_are_refused(result: Any) -> None:
    with pytest.raises(ValueError, match="logit_fn should return a Tensor or a dictionary mapping"):
        call_logit_fn(lambda features: result, {}, "train", {}, None)
