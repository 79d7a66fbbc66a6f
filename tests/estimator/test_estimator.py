"""Making an Estimator: its arguments and facts."""

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tfdist.estimator as tfe


def _model_fn(features: Any, labels: Any, mode: str) -> Any:
    raise AssertionError("not called here")


def _with_params(features: Any, mode: str, params: Any) -> Any:
    raise AssertionError("not called here")


# model_fn.


@pytest.mark.parametrize(
    ("model_fn", "params", "message"),
    [
        (None, None, "model_fn must be provided"),
        ("model", None, "model_fn must be callable, got 'model'"),
        (lambda labels, mode: None, None, "must include features argument"),
        (lambda features, x, mode, y: None, None, r"not expected args: \['x', 'y'\]"),
        (_model_fn, {"rate": 1}, "does not include params argument, but params"),
        (_model_fn, {}, "does not include params argument, but params"),
    ],
)
def test_a_model_fn_that_cannot_be_called_is_refused(
    model_fn: Any, params: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        tfe.Estimator(model_fn, params=params)


def test_a_method_an_object_and_a_partial_are_model_fns(tmp_path: Path) -> None:
    class Model:
        def build(self, features: Any, mode: str) -> Any:
            return None

        def __call__(self, features: Any, labels: Any) -> Any:
            return None

    def with_more(features: Any, depth: int, mode: str) -> Any:
        return None

    for model_fn in (Model().build, Model(), functools.partial(with_more, depth=3)):
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


# model_dir and config.


def test_the_model_dir_may_come_from_either_side(tmp_path: Path) -> None:
    for estimator in (
        tfe.Estimator(_model_fn, tmp_path),
        tfe.Estimator(_model_fn, config=tfe.RunConfig(model_dir=tmp_path)),
        tfe.Estimator(_model_fn, str(tmp_path), tfe.RunConfig(model_dir=str(tmp_path))),
        tfe.Estimator(_model_fn, "", tfe.RunConfig(model_dir=tmp_path)),
    ):
        assert estimator.model_dir == estimator.config.model_dir == str(tmp_path)


def test_two_model_dirs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"with different values.*Give one of them"):
        tfe.Estimator(_model_fn, tmp_path / "a", tfe.RunConfig(model_dir=tmp_path / "b"))


def test_without_a_model_dir_a_temporary_one_is_made_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logged: list[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    estimator = tfe.Estimator(_model_fn)
    assert os.path.dirname(estimator.model_dir) == str(tmp_path)
    assert f"Using temporary folder as model directory: {estimator.model_dir}" in logged


def test_a_config_of_another_type_is_refused() -> None:
    with pytest.raises(ValueError, match="config must be an instance of RunConfig"):
        tfe.Estimator(_model_fn, config={"model_dir": "a"})


def test_the_config_is_logged(tmp_path: Path, logged: list[str]) -> None:
    tfe.Estimator(_model_fn, tmp_path)
    assert any(line.startswith("Using config: RunConfig(") for line in logged)


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
        with pytest.raises(ValueError, match=f"Couldn't find trained model at {tmp_path}"):
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
    with pytest.raises(ValueError, match=f"cannot override members.*does override {name}"):
        mine(_model_fn, tmp_path)


def test_a_subclass_may_add_members_and_choose_the_checkpoint(tmp_path: Path) -> None:
    class Mine(tfe.Estimator):
        def __init__(self, model_dir: Any) -> None:
            super().__init__(_model_fn, model_dir)

        def describe(self) -> str:
            return "mine"

        def latest_checkpoint(self) -> str | None:
            return "chosen"

    estimator = Mine(tmp_path)
    assert (estimator.describe(), estimator.latest_checkpoint()) == ("mine", "chosen")


# Asking for what makes no sense.


@pytest.fixture
def estimator(tmp_path: Path) -> tfe.Estimator:
    return tfe.Estimator(_model_fn, tmp_path)


def _no_input() -> Any:
    raise AssertionError("not called here")


@pytest.mark.parametrize("name", ["steps", "max_steps"])
@pytest.mark.parametrize("value", [0, -1])
def test_steps_below_1_are_refused(estimator: tfe.Estimator, name: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"Must specify {name} > 0, given: {value}"):
        estimator.train(_no_input, **{name: value})


def test_evaluating_0_steps_is_refused(estimator: tfe.Estimator) -> None:
    with pytest.raises(ValueError, match="Must specify steps > 0, given: 0"):
        estimator.evaluate(_no_input, steps=0)


def test_steps_and_max_steps_together_are_refused(estimator: tfe.Estimator) -> None:
    with pytest.raises(ValueError, match="Can not provide both steps and max_steps"):
        estimator.train(_no_input, steps=1, max_steps=1)


@pytest.mark.parametrize("steps", [1, 3, 5, 7])
def test_steps_must_be_a_multiple_of_iterations_per_loop(tmp_path: Path, steps: int) -> None:
    config = tfe.RunConfig(device=tfe.DeviceConfig(iterations_per_loop=4))
    estimator = tfe.Estimator(_model_fn, tmp_path, config)
    near = "4 and 8" if steps > 4 else "4"
    message = (
        rf"steps \({steps}\) must be a multiple of iterations_per_loop \(4\). Nearest: {near}\."
    )
    with pytest.raises(ValueError, match=message):
        estimator.train(_no_input, steps=steps)


@pytest.mark.parametrize("method", ["train", "evaluate"])
def test_hooks_of_another_type_are_refused(estimator: tfe.Estimator, method: str) -> None:
    call: Callable[..., Any] = getattr(estimator, method)
    with pytest.raises(
        TypeError, match="All hooks must be SessionRunHook instances, given: 'hook'"
    ):
        call(_no_input, hooks=["hook"], steps=1)


def test_listeners_of_another_type_are_refused(estimator: tfe.Estimator) -> None:
    with pytest.raises(TypeError, match="list of CheckpointSaverListener instances, given: 1"):
        estimator.train(_no_input, steps=1, saving_listeners=[1])


def test_a_model_dir_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    estimator = tfe.Estimator(_model_fn, file / "model")
    with pytest.raises(PermissionError, match=f"model_dir '{file}/model' cannot be written: Not a"):
        estimator.train(_no_input, steps=1)


@pytest.mark.parametrize("task", ["evaluator", "ps"])
def test_a_task_that_does_not_train_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    cluster = '{"worker": ["a:1"], "ps": ["b:1"], "evaluator": ["c:1"]}'
    tf_config = f'{{"cluster": {cluster}, "task": {{"type": "{task}", "index": 0}}}}'
    monkeypatch.setenv("TF_CONFIG", tf_config)
    with pytest.raises(ValueError, match=f"this task is '{task}'.*train_and_evaluate"):
        tfe.Estimator(_model_fn, tmp_path).train(_no_input, steps=1)


def test_several_workers_without_a_strategy_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = '{"worker": ["a:1", "b:1"]}'
    monkeypatch.setenv(
        "TF_CONFIG", f'{{"cluster": {cluster}, "task": {{"type": "worker", "index": 0}}}}'
    )
    with pytest.raises(ValueError, match=r"lists 2 workers.*Give it .*MultiWorkerStrategy"):
        tfe.Estimator(_model_fn, tmp_path).train(_no_input, steps=1)
