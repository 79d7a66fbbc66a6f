"""The modules that libraries import from, below a package of another name."""

import importlib
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

import tfdist.estimator as tfe
from tfdist.estimator.compat import finder
from tfdist.estimator.config import run_config
from tfdist.estimator.v1 import Estimator as EstimatorOfV1

Import = Callable[[str], Any]


@pytest.fixture
def of_library() -> Iterator[Import]:
    """Imports a module below `old_library.python.estimator`."""
    package = ModuleType("old_library")
    package.__path__ = []
    sys.modules["old_library"] = package
    finder.install("old_library")
    finder.install("old_library")
    yield lambda name: importlib.import_module(f"old_library.python.estimator.{name}")
    sys.meta_path.pop()
    for name in [name for name in sys.modules if name.split(".")[0] == "old_library"]:
        del sys.modules[name]
    assert not any(isinstance(one, finder.EstimatorModules) for one in sys.meta_path)


def test_every_module_can_be_imported_also_as_an_attribute(of_library: Import) -> None:
    for name in finder._MODULES:
        module = of_library(name)
        parent, _, last = f"old_library.python.estimator.{name}".rpartition(".")
        assert getattr(importlib.import_module(parent), last) is module
    with pytest.raises(AttributeError, match="no attribute 'kmeans'"):
        _ = of_library("canned").kmeans
    with pytest.raises(ModuleNotFoundError, match=r"canned\.kmeans is not in tfdist"):
        of_library("canned.kmeans")


@pytest.mark.parametrize(
    ("module", "name", "ours"),
    [
        ("estimator", "Estimator", EstimatorOfV1),
        ("estimator", "EstimatorV2", tfe.Estimator),
        ("canned.dnn", "DNNClassifierV2", tfe.DNNClassifier),
        ("mode_keys", "ModeKeys", tfe.ModeKeys),
        ("model_fn", "EstimatorSpec", tfe.EstimatorSpec),
        ("run_config", "RunConfig", tfe.RunConfig),
        ("canned.linear", "LinearRegressorV2", tfe.LinearRegressor),
        ("export.export", "ServingInputReceiver", tfe.export.ServingInputReceiver),
        ("model_fn", "_TPUEstimatorSpec", tfe.v1.tpu.TPUEstimatorSpec),
        ("run_config", "TaskType", run_config.TaskType),
        ("export.export_output", "RegressionOutput", tfe.export.RegressionOutput),
        ("head.base_head", "Head", tfe.Head),
    ],
)
def test_names_are_those_of_tfdist(of_library: Import, module: str, name: str, ours: Any) -> None:
    assert getattr(of_library(module), name) is ours


def test_the_keys_are_those_of_the_heads(of_library: Import) -> None:
    predictions = of_library("canned.prediction_keys").PredictionKeys
    head = tfe.BinaryClassHead(thresholds=[0.25])
    with tf.Graph().as_default():
        made = head.predictions(tf.zeros([2, 1]))
    assert set(made) <= {value for name, value in vars(predictions).items() if name.isupper()}


def test_a_name_that_is_missing_says_so_when_it_is_used(of_library: Import) -> None:
    head = of_library("canned.head")._BinaryLogisticHead
    with pytest.raises(NotImplementedError, match=r"canned\.head\._BinaryLogisticHead is not in"):
        type("Own", (head,), {})()


def test_the_head_of_a_library_trains_a_network(of_library: Import) -> None:
    base_head, model_fn = of_library("head.base_head"), of_library("model_fn")
    estimator, dnn = of_library("estimator"), of_library("canned.dnn")
    estimator._canned_estimator_api_gauge.get_cell("Classifier").set("DNN")

    class ExampleLosses(base_head.BinaryClassHead):  # type: ignore[misc,name-defined]
        """A head that gives the optimizer the loss of each example."""

        def _create_tpu_estimator_spec(
            self, features: Any, mode: str, logits: Any, labels: Any = None, **how: Any
        ) -> Any:
            labels = self._processed_labels(logits, labels)
            losses, weights = self._unweighted_loss_and_weights(logits, labels, features)
            common = {"mode": mode, "predictions": self.predictions(logits)}
            common["loss"] = tf.reduce_mean(losses * weights)
            if mode == tfe.ModeKeys.EVAL:
                arguments = {"eval_metrics": self.metrics(), "features": features, "labels": labels}
                metrics = base_head.create_eval_metrics_tuple(
                    self.update_metrics, {**arguments, "logits": logits}
                )
                return model_fn._TPUEstimatorSpec(**common, eval_metrics=metrics)
            train_op = base_head.create_estimator_spec_train_op(
                self.name, regularized_training_loss=losses, **how
            )
            base_head.create_estimator_spec_summary(common["loss"], None, self._summary_key)
            return model_fn._TPUEstimatorSpec(**common, train_op=train_op)

    def build(features: Any, labels: Any, mode: str) -> Any:
        columns = [tf.feature_column.numeric_column("x", (2,))]
        return dnn.dnn_model_fn_v2(features, labels, mode, ExampleLosses(), [4], columns, "SGD")

    x = np.random.RandomState(0).randn(32, 2).astype(np.float32)
    pairs = ({"x": x}, (x[:, :1] > 0).astype(np.float32))
    many = lambda: tf.data.Dataset.from_tensors(pairs).repeat(40)  # noqa: E731
    trained = estimator.Estimator(build).train(many)
    assert trained.evaluate(many, steps=1)["accuracy"] > 0.9
    assert trained._session_config == trained.config.session_config
    assert (trained._warm_start_settings, trained._device_fn) == (None, None)
    assert (trained._train_distribution, trained._eval_distribution) == (None, None)


def test_export_outputs_of_tensorflow_count_as_such() -> None:
    from tensorflow.python.saved_model.model_utils import export_output

    with tf.Graph().as_default():
        output = export_output.RegressionOutput(tf.constant([1.0]))
        assert isinstance(output, tfe.export.ExportOutput)
        spec = tfe.EstimatorSpec(
            "infer", predictions=v1.zeros([1]), export_outputs={"regression": output}
        )
    assert spec.export_outputs["serving_default"] is output
    assert not isinstance("regression", tfe.export.ExportOutput)
