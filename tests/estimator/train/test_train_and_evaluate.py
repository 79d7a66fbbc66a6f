"""`train_and_evaluate` in one process; TrainSpec and EvalSpec."""

import functools
import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import tensorflow.compat.v1 as v1

import tfdist.estimator as tfe
from tfdist.estimator import EvalSpec, TrainSpec, train_and_evaluate
from tfdist.estimator.checkpoints.training_end import remove_end, write_end
from tfdist.strategies import MultiWorkerStrategy

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
def make_estimator(make: Make) -> Make:
    return functools.partial(make, save_checkpoints_steps=2)


def _evaluated_steps(logged: list[str]) -> list[int]:
    start = "Saving dict for global step "
    return [int(line[len(start) :].split(":")[0]) for line in logged if line.startswith(start)]


# The specs.


def test_the_specs_have_tf_estimators_defaults() -> None:
    assert TrainSpec(_input_fn) == (_input_fn, None, (), ())
    assert EvalSpec(_input_fn) == (_input_fn, 100, None, (), (), 120, 600)


def test_the_specs_keep_lists_as_tuples() -> None:
    hook, exporter = v1.train.SessionRunHook(), Exporter()
    listener = v1.train.CheckpointSaverListener()
    train_spec = TrainSpec(_input_fn, hooks=[hook], saving_listeners=[listener])
    assert (train_spec.hooks, train_spec.saving_listeners) == ((hook,), (listener,))
    assert EvalSpec(_input_fn, hooks=[hook]).hooks == (hook,)
    assert EvalSpec(_input_fn, exporters=iter([exporter])).exporters == (exporter,)
    assert EvalSpec(_input_fn, exporters=[]).exporters == ()
    assert EvalSpec(_input_fn, exporters=exporter).exporters == (exporter,)


@pytest.mark.parametrize(
    ("spec", "arguments", "error", "message"),
    [
        (TrainSpec, {"input_fn": "data"}, TypeError, "`input_fn` must be callable, given: 'data'"),
        (EvalSpec, {"input_fn": "data"}, TypeError, "`input_fn` must be callable, given: 'data'"),
        (TrainSpec, {"hooks": [1]}, TypeError, "must be `SessionRunHook` instances, given: 1"),
        (EvalSpec, {"hooks": [1]}, TypeError, "must be `SessionRunHook` instances, given: 1"),
        (TrainSpec, {"max_steps": 0}, ValueError, "Must specify max_steps > 0, given: 0"),
        (EvalSpec, {"steps": 0}, ValueError, "Must specify steps > 0, given: 0"),
        (EvalSpec, {"start_delay_secs": -1}, ValueError, "start_delay_secs >= 0, given: -1"),
        (EvalSpec, {"throttle_secs": -1}, ValueError, "throttle_secs >= 0, given: -1"),
        (
            TrainSpec,
            {"saving_listeners": [v1.train.SessionRunHook()]},
            TypeError,
            "saving_listeners must be `CheckpointSaverListener` inst",
        ),
        (EvalSpec, {"name": 3}, TypeError, "`name` must be string, given: 3"),
        (EvalSpec, {"exporters": 3}, TypeError, "`exporters` must be an Exporter"),
        (EvalSpec, {"exporters": "exporter"}, TypeError, "`exporters` must be an Exporter"),
        (EvalSpec, {"exporters": [Exporter(), "a"]}, TypeError, "`exporters` must be an Exporter"),
        (EvalSpec, {"exporters": Exporter("")}, ValueError, "a name that is `None` or empty"),
        (EvalSpec, {"exporters": Exporter(None)}, ValueError, "a name that is `None` or empty"),
        (EvalSpec, {"exporters": Exporter(3)}, ValueError, "An Exporter must have a string name"),
        (
            EvalSpec,
            {"exporters": [Exporter("best"), Exporter("best")]},
            ValueError,
            "`exporters` must have unique names. 'best'",
        ),
    ],
)
def test_arguments_that_a_spec_cannot_use_are_refused(
    spec: Any, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        spec(**{"input_fn": _input_fn, **arguments})


def test_arguments_of_another_type_are_refused(make_estimator: Make) -> None:
    train_spec, eval_spec = TrainSpec(_input_fn), EvalSpec(_input_fn)
    estimator = make_estimator()
    for arguments, name in (
        ((estimator, train_spec, train_spec), "`eval_spec` must have type `tf.estimator.EvalSpec`"),
        (("mine", train_spec, eval_spec), "`estimator` must have type `tf.estimator.Estimator`"),
        ((estimator, eval_spec, eval_spec), "`train_spec` must have type `tf.estimator.TrainSpec`"),
    ):
        with pytest.raises(TypeError, match=name):
            train_and_evaluate(*arguments)


def test_evaluated_steps_that_do_not_fill_a_loop_are_refused_before_training(
    make_estimator: Make,
) -> None:
    estimator = make_estimator(device={"iterations_per_loop": 3})
    with pytest.raises(ValueError, match=r"steps \(100\) must be a multiple of"):
        train_and_evaluate(estimator, TrainSpec(_input_fn), EvalSpec(_input_fn))


# Training and evaluating in turn.


@pytest.mark.parametrize(
    ("max_steps", "throttle_secs", "evaluated"),
    [
        (5, 0, [2, 4, 5]),
        (4, 0, [2, 4]),  # The last one is not evaluated twice.
        (7, 600, [2, 7]),
    ],
)
def test_each_later_checkpoint_is_evaluated_unless_it_is_throttled_but_always_the_last(
    make_estimator: Make,
    numbers: Make,
    logged: list[str],
    max_steps: int,
    throttle_secs: int,
    evaluated: list[int],
) -> None:
    metrics, exports = train_and_evaluate(
        make_estimator(),
        TrainSpec(numbers(), max_steps=max_steps),
        EvalSpec(numbers(), steps=1, throttle_secs=throttle_secs),
    )
    assert _evaluated_steps(logged) == evaluated
    line = "Skip the current checkpoint eval due to throttle secs (600 secs)."
    assert (line in logged) == (throttle_secs > 0)
    assert metrics is not None and metrics.keys() == {"mae", "loss", "global_step"}
    assert (metrics["global_step"], exports) == (max_steps, [])


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


# A cluster of one worker and an evaluator, each of which works in its own process.


def test_one_worker_beside_an_evaluator_waits_for_no_server(
    make_estimator: Make, numbers: Make, monkeypatch: pytest.MonkeyPatch, logged: list[str]
) -> None:
    cluster = {"worker": ["localhost:1"], "evaluator": ["localhost:2"]}
    task = {"type": "worker", "index": 0}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))
    make_estimator(train_distribute=MultiWorkerStrategy()).train(numbers(), max_steps=1)
    assert any(line.startswith("Saving checkpoints for 1 ") for line in logged), logged


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
    make_estimator: Make, numbers: Make, monkeypatch: pytest.MonkeyPatch, logged: list[str]
) -> None:
    slept: list[float] = []

    def train_instead_of_sleeping(secs: float) -> None:
        slept.append(secs)
        if len(slept) in (9, 24):  # After 7 seconds, and 7 and 37.
            monkeypatch.delenv("TF_CONFIG")
            make_estimator().train(numbers(), max_steps=2 if len(slept) == 9 else 4)
            monkeypatch.setenv("TF_CONFIG", '{"task": {"type": "evaluator", "index": 0}}')

    monkeypatch.setattr("time.sleep", train_instead_of_sleeping)
    train_and_evaluate(
        make_estimator(),
        TrainSpec(_input_fn, max_steps=4),
        EvalSpec(numbers(), steps=1, start_delay_secs=7, throttle_secs=30),
    )
    assert _evaluated_steps(logged) == [2, 4]
    assert slept[:4] == [2, 2, 2, 1]
    # Unlike tf.estimator, not after the last evaluation.
    assert 40 < sum(slept[4:]) <= 2 * 30
    assert any(line.startswith("Estimator is not trained yet") for line in logged)


# Who does what, seen on an Estimator that does nothing.


class Times:
    """A clock that only sleep moves; each look at it is `a_look` later."""

    def __init__(self, a_look: float = 0.0) -> None:
        self.now, self.a_look = 1000.0, a_look
        self.slept: list[float] = []

    def monotonic(self) -> float:
        self.now += self.a_look
        return self.now

    def sleep(self, secs: float) -> None:
        self.slept.append(secs)
        self.now += secs


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Makes an Estimator of a task, whose checkpoints and results are given."""

    def fake(tf_config: Any, paths: list[Any] | None = None, results: Any = None) -> Any:
        monkeypatch.setenv("TF_CONFIG", json.dumps(tf_config))
        monkeypatch.setattr("tfdist.estimator.train.evaluator.newest_whole", lambda _, first: first)
        estimator = mock.Mock(spec=tfe.Estimator)
        estimator.config = tfe.RunConfig(model_dir="model")
        estimator.model_dir = "model"
        estimator.latest_checkpoint.side_effect = paths
        estimator.evaluate.side_effect = results
        return estimator

    return fake


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Times:
    clock = Times()
    monkeypatch.setattr("tfdist.estimator.train.evaluator.time", clock)
    return clock


EVALUATOR = {"task": {"type": "evaluator", "index": 0}}
TRAIN = TrainSpec(_input_fn, max_steps=9)


def _run(estimator: Any, **settings: Any) -> Any:
    """Trains to step 9 and evaluates, with settings of the EvalSpec."""
    return train_and_evaluate(estimator, TRAIN, EvalSpec(_input_fn, **settings))


def _result(step: int) -> dict[str, Any]:
    return {"global_step": step, "loss": 1.0}


def test_an_evaluator_calls_evaluate_with_the_spec(fake: Make, clock: Times) -> None:
    paths = ["model/model.ckpt-8", "model/model.ckpt-9"]
    estimator = fake(EVALUATOR, paths, [_result(8), _result(9)])
    hook, exporter = v1.train.SessionRunHook(), Exporter()
    spec = EvalSpec(_input_fn, 3, "name", [hook], exporter, start_delay_secs=120, throttle_secs=600)
    clock.a_look = 40.0
    train_and_evaluate(estimator, TRAIN, spec)
    estimator.evaluate.assert_called_with(
        input_fn=_input_fn,
        steps=3,
        name="name",
        checkpoint_path="model/model.ckpt-9",
        hooks=(hook,),
    )
    assert sum(clock.slept) == 120 + 560
    assert [call["is_the_final_export"] for call in exporter.calls] == [False, True]
    estimator.train.assert_not_called()


def test_an_evaluator_does_not_evaluate_a_checkpoint_twice_and_says_so_every_10_minutes(
    fake: Make, clock: Times, logged: list[str]
) -> None:
    paths = ["a", "a", "a", "a", "b"]
    estimator = fake(EVALUATOR, paths, [_result(1), _result(9)])
    _run(estimator, start_delay_secs=0, throttle_secs=301)
    called = [call.kwargs["checkpoint_path"] for call in estimator.evaluate.call_args_list]
    assert called == ["a", "b"]
    assert sum(clock.slept) == 4 * 301
    warnings = [line for line in logged if line.startswith("No new checkpoint ready for eval")]
    assert len(warnings) == 2  # Of three: at 301, 602 and 903 seconds.


def test_an_evaluator_that_never_waits_is_warned(
    fake: Make, clock: Times, logged: list[str]
) -> None:
    estimator = fake(EVALUATOR, [None, None, "a"], [_result(9)])
    _run(estimator, start_delay_secs=0, throttle_secs=0)
    phrase = "EvalSpec.throttle_secs is set as 0"
    assert sum(line.startswith(phrase) for line in logged) == 1


@pytest.mark.parametrize("throttle_secs", [0, 600])
def test_an_evaluator_ends_after_the_last_checkpoint_of_a_training_that_ended_early(
    fake: Make, clock: Times, tmp_path: Path, throttle_secs: int
) -> None:
    estimator = fake(EVALUATOR, ["a", "b"], [_result(1), _result(2)])
    estimator.model_dir = str(tmp_path)
    (tmp_path / "training.ended").write_text("of an earlier training")
    removed = iter([True, False])
    slept = clock.sleep

    def sleep(secs: float) -> None:
        slept(secs)
        if next(removed, False):  # The chief begins.
            remove_end(str(tmp_path))
        elif len(clock.slept) == 3:
            write_end(str(tmp_path))

    clock.sleep = sleep  # type: ignore[method-assign]
    estimator.latest_checkpoint.side_effect = lambda: "a" if len(clock.slept) < 3 else "b"
    metrics, _ = _run(estimator, start_delay_secs=0, throttle_secs=throttle_secs)
    assert metrics == _result(2)
    assert sum(clock.slept) < 10


def test_an_evaluator_that_starts_after_the_training_waits_for_another_and_then_ends(
    fake: Make, clock: Times, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    estimator = fake(EVALUATOR, None, [_result(2)])
    estimator.model_dir = str(tmp_path)
    estimator.latest_checkpoint.side_effect = lambda: "a"
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr("socket.gethostname", lambda: "another machine")
        write_end(str(tmp_path))
    times = SimpleNamespace(monotonic=clock.monotonic)
    monkeypatch.setattr("tfdist.estimator.checkpoints.training_end.time", times)
    metrics, _ = _run(estimator, start_delay_secs=0, throttle_secs=60)
    assert metrics == _result(2)
    assert 600 <= sum(clock.slept) < 700


def test_an_evaluator_that_starts_while_a_short_training_ends_does_not_wait(
    fake: Make, clock: Times, tmp_path: Path
) -> None:
    estimator = fake(EVALUATOR, ["a"], [_result(2)])
    estimator.model_dir = str(tmp_path)
    write_end(str(tmp_path))  # By a process of this machine, after this one was started.
    spec = EvalSpec(_input_fn, start_delay_secs=120, throttle_secs=60)
    assert train_and_evaluate(estimator, TRAIN, spec)[0] == _result(2)
    assert clock.slept == []


@pytest.mark.parametrize("error", [None, v1.train.NanLossDuringTrainingError, KeyError])
def test_a_chief_notes_the_end_of_its_training(fake: Make, tmp_path: Path, error: Any) -> None:
    estimator = fake(_task({"chief": ["a:1"], "evaluator": ["b:1"]}, "chief"))
    estimator.model_dir = str(tmp_path)
    estimator.train.side_effect = error
    write_end(str(tmp_path))
    before = (tmp_path / "training.ended").read_text()
    with pytest.raises(error) if error else nullcontext():
        _run(estimator)
    note = tmp_path / "training.ended"
    assert note.exists() == (error is not KeyError)  # It may be started again.
    assert error is KeyError or note.read_text() != before


@pytest.mark.parametrize(
    ("result", "error", "phrase"),
    [
        ({}, ValueError, "should never return empty metrics"),
        (None, ValueError, "should never return empty metrics"),
        ([("loss", 1.0)], TypeError, "should return dict"),
        ({"loss": 1.0}, ValueError, "result should have `global_step`"),
    ],
)
@pytest.mark.usefixtures("clock")
def test_an_evaluate_that_returns_something_else_is_refused(
    fake: Make, result: Any, error: Any, phrase: str
) -> None:
    estimator = fake(EVALUATOR, ["a"], [result])
    with pytest.raises(error, match=phrase):
        _run(estimator, start_delay_secs=0)


def test_a_listener_that_finds_no_new_checkpoint_raises(fake: Make) -> None:
    estimator = fake({}, ["a", "a"], [_result(1)])

    def train(saving_listeners: Any, **arguments: Any) -> None:
        [listener] = saving_listeners
        listener.begin()
        for step in (0, 1):
            listener.after_save(None, step)
        listener.end(None, 2)

    estimator.train.side_effect = train
    with pytest.raises(RuntimeError, match="There was no new checkpoint after the training"):
        _run(estimator, throttle_secs=0)


def _task(cluster: Any, task_type: str, index: int = 0) -> Any:
    return {"cluster": cluster, "task": {"type": task_type, "index": index}}


def test_a_chief_beside_an_evaluator_only_trains(fake: Make) -> None:
    estimator = fake(_task({"chief": ["a:1"], "evaluator": ["b:1"]}, "chief"))
    listener = v1.train.CheckpointSaverListener()
    spec = TrainSpec(_input_fn, max_steps=9, saving_listeners=[listener])
    assert train_and_evaluate(estimator, spec, EvalSpec(_input_fn)) == (None, None)
    estimator.train.assert_called_once_with(
        input_fn=_input_fn, max_steps=9, hooks=[], saving_listeners=[listener]
    )
    estimator.evaluate.assert_not_called()


@pytest.mark.parametrize("task_type", ["chief", "master", "worker"])
def test_a_cluster_of_one_evaluates_after_its_checkpoints(fake: Make, task_type: str) -> None:
    estimator = fake(_task({task_type: ["a:1"]}, task_type))
    _run(estimator)
    assert len(estimator.train.call_args.kwargs["saving_listeners"]) == 1


PS = {"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:1"]}


@pytest.mark.parametrize("task_type", ["chief", "worker", "ps"])
def test_parameter_servers_are_refused_with_the_alternative(fake: Make, task_type: str) -> None:
    with pytest.raises(ValueError, match=r"job 'ps'.*=\"replace\".*MultiWorkerStrategy"):
        train_and_evaluate(fake(_task(PS, task_type)), TRAIN, EvalSpec(_input_fn))


def test_an_evaluator_of_a_cluster_with_parameter_servers_evaluates(
    fake: Make, clock: Times
) -> None:
    estimator = fake(_task(PS, "evaluator"), ["a"], [_result(9)])
    _run(estimator)
    assert estimator.evaluate.call_count == 1


@pytest.mark.parametrize(
    ("task_type", "index", "phrase"),
    [
        ("local", 0, "`task.type` in TF_CONFIG cannot be `local`"),
        ("fun", 0, "Task type fun is not supported. Supported task types are .*'chief', 'evaluat"),
        ("evaluator", 1, "there can only be one `evaluator` task .*with task id 0"),
    ],
)
def test_other_tasks_are_refused(fake: Make, task_type: str, index: int, phrase: str) -> None:
    estimator = fake(_task({"chief": ["a:1"], task_type: ["b:1"]}, task_type, index))
    with pytest.raises(ValueError, match=phrase):
        _run(estimator)


def test_a_worker_without_a_master_is_refused(fake: Make) -> None:
    config = mock.Mock(spec=tfe.RunConfig)
    estimator = fake({})
    estimator.config = config
    config.cluster_spec = v1.train.ClusterSpec({"worker": ["a:1", "b:2"]})
    config.task_type, config.task_id, config.num_ps_replicas = "worker", 0, 0
    config.num_worker_replicas, config.master = 2, ""
    with pytest.raises(RuntimeError, match=r"Could not start server; .*TF_CONFIG"):
        _run(estimator)
