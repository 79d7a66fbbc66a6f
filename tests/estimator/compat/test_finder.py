"""The modules that libraries import from, below a package of another name."""

import importlib
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any
from unittest import mock

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
    _uninstall("old_library")
    for name in [name for name in sys.modules if name.split(".")[0] == "old_library"]:
        del sys.modules[name]


def _uninstall(package: str) -> None:
    root = f"{package}.python.estimator"
    [own] = [one for one in sys.meta_path if getattr(one, "root", "") == root]
    sys.meta_path.remove(own)


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


@pytest.fixture
def of_tensorflow() -> Iterator[Import]:
    """Imports a module below TensorFlow's own path of tf.estimator."""
    finder.install("tensorflow")
    yield lambda name: importlib.import_module(f"tensorflow.python.{name}")
    _uninstall("tensorflow")
    for name in [name for name in sys.modules if name.startswith("tensorflow.python.estimator")]:
        del sys.modules[name]
    del sys.modules["tensorflow.python.distribute.estimator_training"]


def test_tensorflows_own_path_has_the_same_names(of_tensorflow: Import, of_library: Import) -> None:
    for module, name in (("estimator.exporter", "_SavedModelExporter"), ("estimator.gc", "Path")):
        assert getattr(of_tensorflow(module), name) is getattr(
            of_library(module.removeprefix("estimator.")), name
        )
    coordinator = of_tensorflow("distribute.estimator_training")
    assert not coordinator.should_run_distribute_coordinator(tfe.RunConfig())
    assert not hasattr(coordinator, "__path__")


def test_rules_keep_the_newest_exports(of_library: Import, tmp_path: Any) -> None:
    gc = of_library("gc")
    for name in ("3", "1", "2", "notes"):
        (tmp_path / name).mkdir()

    def with_number(path: Any) -> Any:
        last = path.path.rpartition("/")[2]
        return path._replace(export_version=int(last)) if last.isdigit() else None

    paths = gc._get_paths(str(tmp_path), parser=with_number)
    newest = gc._largest_export_versions(2)
    assert [path.export_version for path in newest(paths)] == [2, 3]
    assert [path.export_version for path in gc._negation(newest)(paths)] == [1]
    assert gc._union(newest, gc._negation(newest))(paths) == paths
    assert newest(paths[:1]) == paths[:1]


def test_optimizers_of_tensorflow_1_have_names(of_library: Import) -> None:
    make = of_library("canned.optimizers").get_optimizer_instance
    assert isinstance(make("Ftrl", 0.005), v1.train.FtrlOptimizer)
    given = v1.train.AdamOptimizer(0.1)
    assert make(given, 0.005) is given is make(lambda: given)
    with pytest.raises(ValueError, match="Supported names are"):
        make("Lamb", 0.1)
    with pytest.raises(ValueError, match="learning_rate must be specified"):
        make("Adam")
    with pytest.raises(ValueError, match="not an Optimizer instance"):
        make(tf.keras.optimizers.SGD(0.1))


def test_a_listener_of_a_library_ends_a_training_after_an_evaluation(
    of_library: Import, dense: Any, numbers: Any, tmp_path: Any
) -> None:
    training = of_library("training")
    paths = []

    class Stop(training._ContinuousEvalListener):  # type: ignore[name-defined,misc]
        def after_eval(self, eval_result: Any) -> bool:
            paths.append((eval_result.status, eval_result.checkpoint_path))
            return len(paths) < 2

    config = tfe.RunConfig(model_dir=str(tmp_path), save_checkpoints_steps=1)
    executor = training._TrainingExecutor(
        tfe.Estimator(dense("adam"), config=config),
        training.TrainSpec(numbers(batches=20), max_steps=20),
        training.EvalSpec(numbers(), throttle_secs=0),
        continuous_eval_listener=Stop(),
    )
    metrics, _ = executor.run()
    assert [status for status, _ in paths[:2]] == ["evaluated"] * 2
    assert str(paths[0][1]) == f"{tmp_path}/model.ckpt-1"
    assert 2 <= metrics["global_step"] < 5
    with pytest.raises(TypeError, match="must have type `_ContinuousEvalListener`"):
        training._TrainingExecutor(None, None, None, continuous_eval_listener=object())


def test_an_evaluator_takes_a_stand_in_for_the_estimator_and_its_paths(
    of_library: Import, numbers: Any, tmp_path: Any
) -> None:
    training = of_library("training")
    estimator = mock.Mock(spec=tfe.Estimator, model_dir=bytes(tmp_path))
    estimator.evaluate.side_effect = [{"global_step": 1}, {"global_step": 2}]
    # A further look would raise StopIteration.
    estimator.latest_checkpoint.side_effect = [None, "", "one", "one", b"two"]
    exporter = mock.Mock(spec=tfe.Exporter)
    exporter.name = "all"

    class Keep(training._ContinuousEvalListener):  # type: ignore[name-defined,misc]
        def after_eval(self, eval_result: Any) -> bool:
            found.append(eval_result)
            return True

    found: list[Any] = []
    spec = training.EvalSpec(numbers(), exporters=exporter, start_delay_secs=0, throttle_secs=0)
    train_spec = training.TrainSpec(numbers(), max_steps=2)
    training._TrainingExecutor(
        estimator, train_spec, spec, continuous_eval_listener=Keep()
    ).run_evaluator()
    result, status = training._EvalResult, training._EvalStatus
    expected = [
        result(status.MISSING_CHECKPOINT),
        result(status.MISSING_CHECKPOINT),
        result(status.EVALUATED, {"global_step": 1}, "one"),
        result(status.NO_NEW_CHECKPOINT),
        result(status.EVALUATED, metrics={"global_step": 2}, checkpoint_path=b"two"),
    ]
    for one, other in zip(found, expected, strict=True):
        assert isinstance(one, result)
        assert (one.status, one.metrics) == (other.status, other.metrics)
        assert one.checkpoint_path == other.checkpoint_path
    assert exporter.export.call_args.kwargs["export_path"] == f"{tmp_path}/export/all"
    with pytest.raises(TypeError, match="`eval_spec` must have type"):
        training._TrainingExecutor(estimator, train_spec, None).run_local()
