"""Making an Estimator: its arguments and facts."""

import functools
import json
import os
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

import tfdist.estimator as tfe
from tfdist.estimator.graph.replicas import replica_batch_size


def _model_fn(features: Any, labels: Any, mode: str) -> Any:
    raise AssertionError("not called here")


def _with_params(features: Any, mode: str, params: Any) -> Any:
    raise AssertionError("not called here")


# model_fn.


SIZE = r"_batch_size \(got {}\) must be {}"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model_fn": functools.partial(_model_fn, features=1)}, "must include features argument"),
        (
            {"model_fn": functools.partial(_with_params, params=1), "params": {}},
            "does not include params argument",
        ),
        ({"model_fn": None}, "model_fn must be provided"),
        ({"model_fn": "model"}, "model_fn must be callable, got 'model'"),
        ({"model_fn": lambda labels, mode: None}, "must include features argument"),
        ({"model_fn": lambda features, x, mode, y: None}, r"not expected args: \['x', 'y'\]"),
        ({"params": {"rate": 1}}, "does not include params argument, but params"),
        ({"params": {}}, "does not include params argument, but params"),
        (
            {"model_dir": "a", "config": {"model_dir": "b"}},
            r"with different values.*Give one of them",
        ),
        ({"config": None}, "config must be an instance of `RunConfig`"),
        ({"train_batch_size": 1}, "train" + SIZE.format(1, r"divisible .* \(1 \* 2\)")),
        ({"eval_batch_size": 1}, "eval" + SIZE.format(1, r"divisible .* \(1 \* 2\)")),
        ({"predict_batch_size": 1}, "predict" + SIZE.format(1, r"divisible .* \(1 \* 2\)")),
        ({"predict_batch_size": 0}, "predict" + SIZE.format(0, "positive")),
        (
            {"model_fn": _with_params, "params": {"batch_size": 3}, "eval_batch_size": 4},
            "batch_size cannot be passed in params when",
        ),
        (
            {"model_fn": _with_params, "params": [1], "eval_batch_size": 4},
            "`params` is expected to be of type `dict`",
        ),
    ],
)
def test_arguments_that_do_not_fit_are_refused(arguments: dict[str, Any], message: str) -> None:
    given = arguments.get("config", {})
    device = tfe.DeviceConfig(num_replicas=2)
    config = {} if given is None else tfe.RunConfig(device=device, **given)
    with pytest.raises(ValueError, match=message):
        tfe.Estimator(**{"model_fn": _model_fn, **arguments, "config": config})


class Model:
    def build(self, features: Any, mode: str) -> Any:
        return None

    def __call__(self, features: Any, labels: Any) -> Any:
        return None


def _with_depth(features: Any, labels: Any, depth: int) -> Any:
    return None


@functools.wraps(_with_depth)
def _of_depth_3(features: Any, labels: Any) -> Any:
    return _with_depth(features, labels, 3)


@functools.wraps(_model_fn)
def _handing_on(*args: Any, **kwargs: Any) -> Any:
    return _model_fn(*args, **kwargs)


def _with_an_option(features: Any, *, depth: int = 3, mode: str) -> Any:
    return None


@pytest.mark.parametrize(
    "model_fn",
    [
        Model().build,
        Model(),
        functools.partial(_with_depth, depth=3),
        _of_depth_3,  # What a decorator takes counts, not what it wraps.
        _handing_on,
        _with_an_option,
    ],
)
def test_whatever_can_be_called_is_a_model_fn(tmp_path: Path, model_fn: Any) -> None:
    tfe.Estimator(model_fn, tmp_path)


def test_a_model_fn_whose_params_are_not_given_is_told_so(
    tmp_path: Path, logged: list[str]
) -> None:
    assert tfe.Estimator(_with_params, tmp_path).params == {}
    assert any("includes params argument, but params are not passed" in line for line in logged)


def test_params_are_copied(tmp_path: Path) -> None:
    params = {"sizes": [1]}
    estimator = tfe.Estimator(_with_params, tmp_path, params=params)
    params["sizes"].append(2)
    estimator.params["sizes"].append(3)
    assert estimator.params == {"sizes": [1]}
    assert tfe.Estimator(_with_params, tmp_path, params=[1]).params == [1]  # Without a batch size.


# model_dir and config.


def test_the_model_dir_may_come_from_either_side(tmp_path: Path) -> None:
    for estimator in (
        tfe.Estimator(_model_fn, tmp_path),
        tfe.Estimator(_model_fn, config=tfe.RunConfig(model_dir=tmp_path)),
        tfe.Estimator(_model_fn, str(tmp_path), tfe.RunConfig(model_dir=str(tmp_path))),
        tfe.Estimator(_model_fn, "", tfe.RunConfig(model_dir=tmp_path)),
    ):
        assert estimator.model_dir == estimator.config.model_dir == str(tmp_path)


def test_without_a_model_dir_a_temporary_one_is_made_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logged: list[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    estimator = tfe.Estimator(_model_fn)
    assert os.path.dirname(estimator.model_dir) == str(tmp_path)
    assert f"Using temporary folder as model directory: {estimator.model_dir}" in logged


def test_the_config_is_logged(tmp_path: Path, logged: list[str]) -> None:
    tfe.Estimator(_model_fn, tmp_path)
    assert "Using default config." in logged
    assert any(line.startswith(f"Using config: {{'_model_dir': '{tmp_path}'") for line in logged)


def test_the_session_config_is_tf_estimators_where_none_is_given(tmp_path: Path) -> None:
    config = tfe.Estimator(_model_fn, tmp_path).config.session_config
    assert config.allow_soft_placement
    assert config.graph_options.rewrite_options.meta_optimizer_iterations == 1  # ONE
    own = v1.ConfigProto(log_device_placement=True)
    estimator = tfe.Estimator(_model_fn, tmp_path, tfe.RunConfig(session_config=own))
    assert estimator.config.session_config == own


def test_a_config_whose_subclass_replaces_by_rules_of_its_own_is_completed(tmp_path: Path) -> None:
    class Mine(tfe.RunConfig):
        def replace(self, **kwargs: Any) -> Any:
            raise AssertionError("not called here")

    assert tfe.Estimator(_model_fn, tmp_path, Mine()).model_dir == str(tmp_path)


@pytest.mark.parametrize("name", ["model_dir", "config", "params", "model_fn"])
def test_the_facts_cannot_be_set(tmp_path: Path, name: str) -> None:
    with pytest.raises(AttributeError):
        setattr(tfe.Estimator(_model_fn, tmp_path), name, 1)


def test_the_eval_dir_has_the_evaluations_name(tmp_path: Path) -> None:
    estimator = tfe.Estimator(_model_fn, tmp_path)
    assert estimator.eval_dir() == str(tmp_path / "eval")
    assert estimator.eval_dir("test") == str(tmp_path / "eval_test")


def test_an_untrained_estimator_has_no_checkpoint(tmp_path: Path) -> None:
    estimator = tfe.Estimator(_model_fn, tmp_path)
    assert estimator.latest_checkpoint() is None
    for ask in (estimator.get_variable_names, lambda: estimator.get_variable_value("kernel")):
        with pytest.raises(ValueError, match=f"Could not find trained model in .*{tmp_path}"):
            ask()


def test_its_model_fn_takes_features_labels_mode_and_config(tmp_path: Path) -> None:
    seen: list[Any] = []

    def model_fn(features: Any, labels: Any, mode: str, params: Any, config: Any) -> Any:
        seen.append((features, labels, mode, params, config))
        return tfe.EstimatorSpec("infer", predictions={})

    estimator = tfe.Estimator(model_fn, tmp_path, params={"a": 1})
    estimator.model_fn("features", "labels", "infer", "config")
    assert seen == [("features", "labels", "infer", {"a": 1}, "config")]


# Subclasses.


@pytest.mark.parametrize("name", ["train", "evaluate", "predict", "config", "eval_dir"])
def test_a_subclass_that_overrides_a_member_is_refused(tmp_path: Path, name: str) -> None:
    mine = type("Mine", (tfe.Estimator,), {name: lambda self: None})
    further = type("Further", (mine,), {})
    for kind in (mine, further):
        with pytest.raises(ValueError, match=rf"cannot override .*does override \['{name}'\]"):
            kind(_model_fn, tmp_path)


def test_a_subclass_that_overrides_the_check_may_override_members(tmp_path: Path) -> None:
    class Mine(tfe.Estimator):
        def _assert_members_are_not_overridden(self) -> None:
            pass

        def evaluate(self, *arguments: Any, **options: Any) -> dict[str, Any]:
            return {"mine": 1}

    assert Mine(_model_fn, tmp_path).evaluate() == {"mine": 1}


def test_a_subclass_may_have_members_of_every_kind_and_choose_the_checkpoint(
    tmp_path: Path,
) -> None:
    class Mine(tfe.Estimator):
        constant = 3

        @staticmethod
        def static() -> int:
            return 4

        @classmethod
        def of_the_class(cls) -> str:
            return cls.__name__

        @property
        def fact(self) -> int:
            return 5

        def __repr__(self) -> str:
            return "mine"

        def _create_and_assert_global_step(self, graph: Any) -> Any:
            return None

        def latest_checkpoint(self) -> str | None:
            return "chosen"

    mine = Mine(_model_fn, tmp_path)
    members = (mine.constant, mine.static(), mine.of_the_class(), mine.fact, repr(mine))
    assert members == (3, 4, "Mine", 5, "mine")
    assert mine.latest_checkpoint() == "chosen"


def test_a_subclass_may_make_its_model_fn_from_itself(tmp_path: Path) -> None:
    class Mine(tfe.Estimator):
        def __init__(self, width: int, **kwargs: Any) -> None:
            self.width = width
            super().__init__(model_fn=self._build, **kwargs)

        def _build(self, features: Any, labels: Any, mode: str) -> Any:
            return tfe.EstimatorSpec(mode, predictions=features * self.width)

    def input_fn() -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices([1, 2]).batch(2)

    assert list(Mine(3, model_dir=tmp_path).predict(input_fn)) == [3, 6]


# Global batch sizes.


def _seen_by_input_fn(estimator: tfe.Estimator, method: str) -> Any:
    seen: list[Any] = []

    def input_fn(params: Any) -> Any:
        seen.append(params)
        raise _Enough

    with pytest.raises(_Enough):
        call = getattr(estimator, method)(input_fn)
        if method == "predict":
            next(call)
    return seen[0]


class _Enough(Exception):
    """Ends a call once it has shown what is wanted."""


METHODS = [("train", "train"), ("evaluate", "eval"), ("predict", "predict")]


@pytest.mark.parametrize(("method", "name"), METHODS)
def test_the_batch_size_of_a_replica_is_in_params(tmp_path: Path, method: str, name: str) -> None:
    sizes = {"train_batch_size": 6, "eval_batch_size": 8, "predict_batch_size": 10}
    for number in (1, 2):
        config = tfe.RunConfig(device=tfe.DeviceConfig(num_replicas=number))
        estimator = tfe.Estimator(_with_params, tmp_path, config, params={"a": 1}, **sizes)
        expected = {"a": 1, "batch_size": sizes[f"{name}_batch_size"] // number}
        assert _seen_by_input_fn(estimator, method) == expected
        assert estimator.params == {"a": 1}


def test_workers_and_replicas_share_a_batch() -> None:
    assert replica_batch_size("train_batch_size", 24, 2, 3) == 4
    message = r"train_batch_size \(got 25\) must be divisible by num_workers \* num_replicas "
    with pytest.raises(ValueError, match=message + r"\(2 \* 3\). Nearest: 24 and 30"):
        replica_batch_size("train_batch_size", 25, 2, 3)


# Asking for what makes no sense.


def _no_input() -> Any:
    raise AssertionError("not called here")


_HOOKS = r"Hooks must be a SessionRunHook, given: 'hook'"


@pytest.mark.parametrize(
    ("method", "arguments", "error", "message"),
    [
        ("train", {"steps": 0}, ValueError, "Must specify steps > 0, given: 0"),
        ("train", {"steps": -1}, ValueError, "Must specify steps > 0, given: -1"),
        ("train", {"max_steps": 0}, ValueError, "Must specify max_steps > 0, given: 0"),
        ("evaluate", {"steps": 0}, ValueError, "Must specify steps > 0, given: 0"),
        ("train", {"steps": 1, "max_steps": 1}, ValueError, "both steps and max_steps"),
        ("train", {"steps": 4, "hooks": ["hook"]}, TypeError, _HOOKS),
        ("evaluate", {"steps": 4, "hooks": ["hook"]}, TypeError, _HOOKS),
        (
            "train",
            {"steps": 4, "saving_listeners": [1]},
            TypeError,
            "must be a list of CheckpointSaverListener, given: 1",
        ),
        (
            "train",
            {"steps": 1},
            ValueError,
            r"steps \(1\) must be a multiple of iterations_per_loop \(4\). Nearest: 4\.",
        ),
        ("train", {"steps": 7}, ValueError, r"steps \(7\) must .* \(4\). Nearest: 4 and 8\."),
        ("evaluate", {"steps": 1}, ValueError, r"steps \(1\) must be a multiple of .* \(4\)"),
        (
            "train",
            {"steps": 4},
            ValueError,
            r"input_fn must have params argument to receive params\['batch_size'\]",
        ),
    ],
)
def test_arguments_that_make_no_sense_are_refused(
    tmp_path: Path, method: str, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    config = tfe.RunConfig(device=tfe.DeviceConfig(iterations_per_loop=4))
    estimator = tfe.Estimator(_model_fn, tmp_path, config, train_batch_size=3)
    with pytest.raises(error, match=message):
        getattr(estimator, method)(_no_input, **arguments)


def test_a_model_dir_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    estimator = tfe.Estimator(_model_fn, file / "model")
    with pytest.raises(PermissionError, match=f"model_dir '{file}/model' cannot be written: Not a"):
        estimator.train(_no_input, steps=1)


WITH_SERVERS = {"chief": ["a:1"], "ps": ["b:1"]}


@pytest.mark.parametrize(
    ("cluster", "task", "message"),
    [
        (WITH_SERVERS, "evaluator", "this task is 'evaluator'.*train_and_evaluate"),
        (WITH_SERVERS, "ps", "this task is 'ps'.*train_and_evaluate"),
        (WITH_SERVERS, "chief", "no parameter servers here.*MultiWorkerStrategy"),
        ({"worker": ["a:1", "b:1"]}, "worker", "lists 2 workers.*Give it .*MultiWorkerStrategy"),
    ],
)
def test_a_task_that_cannot_train_is_refused_with_the_alternative(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cluster: Any, task: str, message: str
) -> None:
    tf_config = {"cluster": cluster, "task": {"type": task, "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(tf_config))
    with pytest.raises(ValueError, match=message):
        tfe.Estimator(_model_fn, tmp_path).train(_no_input, steps=1)
