"""train_and_evaluate in one process; TrainSpec and EvalSpec."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow.compat.v1 as v1

import tfdist.estimator as tfe
from tfdist.estimator import EvalSpec, TrainSpec, train_and_evaluate

Make = Callable[..., Any]


class Exporter:
    """Remembers how it was called."""

    def __init__(self, name: Any = "exporter") -> None:
        self.name = name
        self.calls: list[dict[str, Any]] = []

    def export(self, **arguments: Any) -> str:
        self.calls.append(arguments)
        return f"result {len(self.calls)}"


def _input_fn() -> Any:
    raise AssertionError("not called here")


@pytest.fixture
def make_estimator(dense: Make, tmp_path: Path) -> Callable[..., tfe.Estimator]:
    def make_estimator(**settings: Any) -> tfe.Estimator:
        config = tfe.RunConfig(
            save_summary_steps=None,
            log_step_count_steps=None,
            **{"save_checkpoints_steps": 2, **settings},
        )
        return tfe.Estimator(dense(), tmp_path, config)

    return make_estimator


def _evaluated_steps(logged: list[str]) -> list[int]:
    start = "Saving dict for global step "
    return [int(line[len(start) :].split(":")[0]) for line in logged if line.startswith(start)]


# The specs.


def test_the_specs_have_tf_estimators_defaults() -> None:
    assert TrainSpec(_input_fn) == (_input_fn, None, (), ())
    assert EvalSpec(_input_fn) == (_input_fn, 100, None, (), (), 120, 600)


def test_the_specs_keep_lists_as_tuples() -> None:
    hook, listener, exporter = (
        v1.train.SessionRunHook(),
        v1.train.CheckpointSaverListener(),
        Exporter(),
    )
    train_spec = TrainSpec(_input_fn, hooks=[hook], saving_listeners=[listener])
    assert (train_spec.hooks, train_spec.saving_listeners) == ((hook,), (listener,))
    assert EvalSpec(_input_fn, hooks=[hook]).hooks == (hook,)
    assert EvalSpec(_input_fn, exporters=[exporter]).exporters == (exporter,)
    assert EvalSpec(_input_fn, exporters=exporter).exporters == (exporter,)


@pytest.mark.parametrize("spec", [TrainSpec, EvalSpec])
def test_an_input_fn_must_be_callable(spec: Any) -> None:
    with pytest.raises(TypeError, match="input_fn must be callable, given: 'data'"):
        spec("data")


@pytest.mark.parametrize("spec", [TrainSpec, EvalSpec])
def test_hooks_of_another_type_are_refused(spec: Any) -> None:
    with pytest.raises(TypeError, match="All hooks must be SessionRunHook instances, given: 1"):
        spec(_input_fn, hooks=[1])


@pytest.mark.parametrize(
    ("spec", "name", "value"),
    [
        (TrainSpec, "max_steps", 0),
        (EvalSpec, "steps", 0),
        (EvalSpec, "start_delay_secs", -1),
        (EvalSpec, "throttle_secs", -1),
    ],
)
def test_numbers_too_small_are_refused(spec: Any, name: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"{name} must be at least"):
        spec(_input_fn, **{name: value})


def test_listeners_of_another_type_are_refused() -> None:
    with pytest.raises(TypeError, match="saving_listeners must be CheckpointSaverListener objects"):
        TrainSpec(_input_fn, saving_listeners=[v1.train.SessionRunHook()])


def test_a_name_that_is_no_string_is_refused() -> None:
    with pytest.raises(TypeError, match="name must be string, given: 3"):
        EvalSpec(_input_fn, name=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [3, "exporter", [Exporter(), "exporter"]])
def test_exporters_of_another_type_are_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="exporters must be"):
        EvalSpec(_input_fn, exporters=value)


@pytest.mark.parametrize("name", ["", None, 3])
def test_an_exporter_needs_a_name(name: Any) -> None:
    with pytest.raises(ValueError, match="must have a name that is a non-empty string"):
        EvalSpec(_input_fn, exporters=Exporter(name))


def test_two_exporters_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="Exporter names must be unique, got 'best' twice"):
        EvalSpec(_input_fn, exporters=[Exporter("best"), Exporter("best")])


def test_arguments_of_another_type_are_refused(make_estimator: Make) -> None:
    train_spec, eval_spec = TrainSpec(_input_fn), EvalSpec(_input_fn)
    estimator = make_estimator()
    for arguments, name in (
        ((estimator, train_spec, train_spec), "eval_spec` must be a tfdist.estimator.EvalSpec"),
        (("mine", train_spec, eval_spec), "estimator` must be a tfdist.estimator.Estimator"),
        ((estimator, eval_spec, eval_spec), "train_spec` must be a tfdist.estimator.TrainSpec"),
    ):
        with pytest.raises(TypeError, match=name):
            train_and_evaluate(*arguments)


# Training and evaluating in turn.


def test_each_later_checkpoint_is_evaluated(
    make_estimator: Make, numbers: Make, saved_steps: Make, tmp_path: Path, logged: list[str]
) -> None:
    metrics, exports = train_and_evaluate(
        make_estimator(),
        TrainSpec(numbers(), max_steps=5),
        EvalSpec(numbers(), steps=1, throttle_secs=0),
    )
    assert saved_steps(tmp_path) == [0, 2, 4, 5]
    assert _evaluated_steps(logged) == [2, 4, 5]
    assert metrics is not None and metrics.keys() == {"mae", "loss", "global_step"}
    assert (metrics["global_step"], exports) == (5, [])


def test_a_throttled_evaluation_is_skipped_but_never_the_last(
    make_estimator: Make, numbers: Make, logged: list[str]
) -> None:
    train_and_evaluate(
        make_estimator(),
        TrainSpec(numbers(), max_steps=7),
        EvalSpec(numbers(), steps=1, throttle_secs=600),
    )
    assert _evaluated_steps(logged) == [2, 7]
    assert "Skip the current checkpoint eval due to throttle secs (600 secs)." in logged


def test_the_last_checkpoint_is_not_evaluated_twice(
    make_estimator: Make, numbers: Make, logged: list[str]
) -> None:
    train_and_evaluate(
        make_estimator(),
        TrainSpec(numbers(), max_steps=4),
        EvalSpec(numbers(), steps=1, throttle_secs=0),
    )
    assert _evaluated_steps(logged) == [2, 4]


def test_training_without_max_steps_goes_to_the_end_of_the_input(
    make_estimator: Make, numbers: Make
) -> None:
    exporter = Exporter()
    metrics, exports = train_and_evaluate(
        make_estimator(),
        TrainSpec(numbers(batches=3)),
        EvalSpec(numbers(batches=2), steps=None, exporters=exporter, throttle_secs=0),
    )
    assert metrics is not None and metrics["global_step"] == 3
    assert exports == ["result 2"]
    assert [call["is_the_final_export"] for call in exporter.calls] == [False, False]


def test_exporters_are_told_of_each_evaluation(
    make_estimator: Make, numbers: Make, tmp_path: Path
) -> None:
    first, second = Exporter("first"), Exporter("second")
    estimator = make_estimator()
    metrics, exports = train_and_evaluate(
        estimator,
        TrainSpec(numbers(), max_steps=3),
        EvalSpec(numbers(), steps=1, exporters=[first, second], throttle_secs=0),
    )
    assert exports == ["result 2", "result 2"]
    assert [call["is_the_final_export"] for call in first.calls] == [False, True]
    assert [call["eval_result"]["global_step"] for call in first.calls] == [2, 3]
    assert first.calls[-1] == {
        "estimator": estimator,
        "export_path": f"{tmp_path}/export/first",
        "checkpoint_path": f"{tmp_path}/model.ckpt-3",
        "eval_result": metrics,
        "is_the_final_export": True,
    }
    assert second.calls[-1]["export_path"] == f"{tmp_path}/export/second"


def test_nothing_to_do_gives_nothing(make_estimator: Make, numbers: Make) -> None:
    make_estimator().train(numbers(), max_steps=2)
    exporter = Exporter()
    eval_spec = EvalSpec(_input_fn, exporters=exporter)
    result = train_and_evaluate(make_estimator(), TrainSpec(_input_fn, max_steps=2), eval_spec)
    assert result == (None, None)
    assert exporter.calls == []


def test_a_second_call_resumes(make_estimator: Make, numbers: Make, logged: list[str]) -> None:
    eval_spec = EvalSpec(numbers(), steps=1, throttle_secs=0)
    train_and_evaluate(make_estimator(), TrainSpec(numbers(), max_steps=2), eval_spec)
    metrics, _ = train_and_evaluate(make_estimator(), TrainSpec(numbers(), max_steps=4), eval_spec)
    assert metrics is not None and metrics["global_step"] == 4
    assert _evaluated_steps(logged) == [2, 4]


def test_hooks_listeners_and_the_name_are_passed_on(
    make_estimator: Make, numbers: Make, tmp_path: Path
) -> None:
    begun: list[str] = []

    class Hook(v1.train.SessionRunHook):  # type: ignore[misc]
        def __init__(self, name: str) -> None:
            self.name = name

        def begin(self) -> None:
            begun.append(self.name)

    class Listener(v1.train.CheckpointSaverListener):  # type: ignore[misc]
        def begin(self) -> None:
            begun.append("listener")

    train_and_evaluate(
        make_estimator(),
        TrainSpec(numbers(), max_steps=2, hooks=[Hook("train")], saving_listeners=[Listener()]),
        EvalSpec(numbers(), steps=1, name="test", hooks=[Hook("eval")]),
    )
    assert begun == ["listener", "train", "eval"]
    assert (tmp_path / "eval_test").is_dir()


def test_without_checkpoints_there_is_nothing_to_evaluate(
    make_estimator: Make, numbers: Make
) -> None:
    estimator = make_estimator(save_checkpoints_steps=None, save_checkpoints_secs=None)
    with pytest.raises(ValueError, match="There should be a CheckpointSaverHook"):
        train_and_evaluate(
            estimator, TrainSpec(numbers(), max_steps=1), EvalSpec(numbers(), steps=1)
        )


# The evaluator task, whose work is done in one process.


@pytest.fixture
def evaluator_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", '{"task": {"type": "evaluator", "index": 0}}')


def test_an_evaluator_evaluates_the_newest_checkpoint_and_ends_with_the_last(
    make_estimator: Make, numbers: Make, request: pytest.FixtureRequest, logged: list[str]
) -> None:
    make_estimator().train(numbers(), max_steps=3)
    request.getfixturevalue("evaluator_task")
    exporter = Exporter()
    train_and_evaluate(
        make_estimator(),
        TrainSpec(_input_fn, max_steps=3),
        EvalSpec(numbers(), steps=1, exporters=exporter, start_delay_secs=0, throttle_secs=0),
    )
    assert _evaluated_steps(logged) == [3]
    assert [call["is_the_final_export"] for call in exporter.calls] == [True]


@pytest.mark.usefixtures("evaluator_task")
def test_an_evaluator_waits_for_checkpoints(
    make_estimator: Make,
    numbers: Make,
    monkeypatch: pytest.MonkeyPatch,
    logged: list[str],
) -> None:
    slept: list[float] = []

    def train_instead_of_sleeping(secs: float) -> None:
        slept.append(secs)
        if len(slept) > 1:
            monkeypatch.delenv("TF_CONFIG")
            make_estimator().train(numbers(), max_steps=2 * len(slept) - 2)
            monkeypatch.setenv("TF_CONFIG", '{"task": {"type": "evaluator", "index": 0}}')

    monkeypatch.setattr("time.sleep", train_instead_of_sleeping)
    train_and_evaluate(
        make_estimator(),
        TrainSpec(_input_fn, max_steps=4),
        EvalSpec(numbers(), steps=1, start_delay_secs=7, throttle_secs=30),
    )
    assert _evaluated_steps(logged) == [2, 4]
    assert slept[0] == 7
    assert all(20 < secs <= 30 for secs in slept[1:])
    assert any(line.startswith("Estimator is not trained yet") for line in logged)
