"""TensorFlow's session hooks, each used in a training of an Estimator."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

import tfdist.estimator as tfe

Make = Callable[..., Any]


def test_the_hooks_are_tensorflows_own() -> None:
    own = {"ProfilerHook", "experimental"}
    names = {name for name in tfe.__all__ if hasattr(v1.train, name)} - own
    assert len(names) == 17
    for name in names:
        assert getattr(tfe, name) is getattr(v1.train, name), name


@pytest.fixture
def estimator(make: Make) -> tfe.Estimator:
    return make()


def _step(estimator: tfe.Estimator) -> int:
    return int(estimator.get_variable_value("global_step"))


class Begin(tfe.SessionRunHook):  # type: ignore[misc,name-defined]
    """Makes another hook once the graph is there, and takes its methods."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make

    def begin(self) -> None:
        self.hook = self.make()
        self.hook.begin()
        for name in ("after_create_session", "before_run", "after_run", "end"):
            setattr(self, name, getattr(self.hook, name))


def test_a_feed_fn_hook_feeds_each_step(tmp_path: Path) -> None:
    numbers = iter([1.0, 2.0, 4.0])

    def model_fn(features: Any, mode: str) -> tfe.EstimatorSpec:
        fed = v1.placeholder(tf.float32, [], name="fed")
        total = v1.get_variable("total", [], initializer=v1.zeros_initializer())
        with tf.control_dependencies([v1.assign_add(total, fed)]):
            step = v1.assign_add(v1.train.get_global_step(), 1)
        hook = tfe.FeedFnHook(lambda: {fed: next(numbers)})
        return tfe.EstimatorSpec(mode, loss=fed, train_op=step, training_hooks=[hook])

    estimator = tfe.Estimator(model_fn, tmp_path)
    estimator.train(lambda: tf.data.Dataset.from_tensors(0.0).repeat(), steps=3)
    assert estimator.get_variable_value("total") == 7.0


def test_a_final_ops_hook_reads_once_at_the_end(estimator: tfe.Estimator, numbers: Make) -> None:
    hook = Begin(lambda: tfe.FinalOpsHook({"step": v1.train.get_global_step()}))
    estimator.train(numbers(), hooks=[hook], steps=3)
    assert hook.hook.final_ops_values == {"step": 3}


def test_a_global_step_waiter_lets_a_reached_step_pass(
    estimator: tfe.Estimator, numbers: Make
) -> None:
    estimator.train(numbers(), hooks=[tfe.GlobalStepWaiterHook(0)], steps=1)
    estimator.train(numbers(), hooks=[tfe.GlobalStepWaiterHook(1)], steps=1)
    assert _step(estimator) == 2


def test_a_logging_hook_finds_tensors_by_name(
    estimator: tfe.Estimator, numbers: Make, logged: list[str]
) -> None:
    def make() -> Any:
        (bias,) = (v for v in v1.global_variables() if v.op.name == "bias")
        tf.identity(bias, name="seen")
        return tfe.LoggingTensorHook({"bias": "seen:0"}, every_n_iter=2)

    estimator.train(numbers(), hooks=[Begin(make)], steps=4)
    assert sum(line.startswith("bias = [") for line in logged) == 2


def test_a_nan_hook_of_the_users_own_may_only_stop(numbers: Make, tmp_path: Path) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
        step = v1.assign_add(v1.train.get_global_step(), 1)
        own = tf.where(step >= 3, float("nan"), 1.0)
        hook = tfe.NanTensorHook(own, fail_on_nan_loss=False)
        return tfe.EstimatorSpec(mode, loss=tf.constant(1.0), train_op=step, training_hooks=[hook])

    estimator = tfe.Estimator(model_fn, tmp_path)
    assert _step(estimator.train(numbers(), steps=9)) == 3


def test_a_profiler_hook_writes_a_timeline(
    estimator: tfe.Estimator, numbers: Make, tmp_path: Path
) -> None:
    assert tf.executing_eagerly()  # TensorFlow's own hook cannot be made so.
    hook = tfe.ProfilerHook(save_steps=2, output_dir=str(tmp_path / "profile"))
    assert isinstance(hook, v1.train.ProfilerHook)
    estimator.train(numbers(), hooks=[hook], steps=4)
    timelines = sorted((tmp_path / "profile").glob("timeline-*.json"))
    assert [path.name for path in timelines] == ["timeline-2.json", "timeline-4.json"]
    events = json.loads(timelines[0].read_text())["traceEvents"]
    assert any("MatMul" in event.get("name", "") for event in events)


def test_a_step_counter_of_the_users_own_measures_speed(
    estimator: tfe.Estimator, numbers: Make, tmp_path: Path, read_events: Make
) -> None:
    hook = tfe.StepCounterHook(every_n_steps=2, output_dir=str(tmp_path / "speed"))
    estimator.train(numbers(), hooks=[hook], steps=5)
    events = read_events(tmp_path / "speed")
    assert [step for step, _ in events["global_step/sec"]] == [3, 5]


def test_a_summary_saver_of_the_users_own_writes_its_summary(
    estimator: tfe.Estimator, numbers: Make, tmp_path: Path, read_events: Make
) -> None:
    def make() -> Any:
        loss = v1.get_collection(v1.GraphKeys.LOSSES)[0]
        own = v1.summary.scalar("own", 2 * loss, collections=[])
        return tfe.SummarySaverHook(save_steps=2, output_dir=str(tmp_path / "own"), summary_op=own)

    estimator.train(numbers(), hooks=[Begin(make)], steps=4)
    assert [step for step, _ in read_events(tmp_path / "own")["own"]] == [1, 3]


class _OwnStop(tfe.StopAtStepHook):  # type: ignore[misc,name-defined]
    """A subclass is used as it is: it stops a call later than one that ends at its step."""


@pytest.mark.parametrize(
    ("hook", "limits", "iterations", "expected"),
    [
        (lambda: tfe.StopAtStepHook(num_steps=3), {}, 1, 5),
        (lambda: tfe.StopAtStepHook(num_steps=5), {}, 2, 8),
        (lambda: tfe.StopAtStepHook(last_step=6), {"steps": 8}, 2, 6),
        (lambda: tfe.StopAtStepHook(last_step=9), {"steps": 4}, 2, 6),
        (lambda: tfe.StopAtStepHook(last_step=9), {"max_steps": 6}, 2, 6),
        (lambda: _OwnStop(last_step=6), {}, 2, 8),
    ],
)
def test_the_first_call_that_reaches_the_lowest_limit_is_the_last(
    make: Make, numbers: Make, hook: Any, limits: dict[str, int], iterations: int, expected: int
) -> None:
    make().train(numbers(), steps=2)
    estimator = make(device={"iterations_per_loop": iterations})
    assert _step(estimator.train(numbers(), hooks=[hook()], **limits)) == expected


def test_stop_at_checkpoint_step_stops_at_its_step(estimator: tfe.Estimator, numbers: Make) -> None:
    hook = tfe.experimental.make_stop_at_checkpoint_step_hook(estimator, last_step=3)
    assert isinstance(hook, tfe.StopAtStepHook)
    estimator.train(numbers(), hooks=[hook])
    assert _step(estimator) == 3
    with pytest.raises(ValueError, match="One of num_steps or last_step must be specified"):
        tfe.experimental.make_stop_at_checkpoint_step_hook(estimator, last_step=None)


def test_another_task_stops_only_once_the_checkpoint_of_the_step_is_there(
    estimator: tfe.Estimator, numbers: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tfe.RunConfig, "is_chief", property(lambda config: False))
    hook = tfe.experimental.make_stop_at_checkpoint_step_hook(estimator, 2, 30)
    monkeypatch.undo()
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            with tf.Graph().as_default():
                estimator.train(numbers(), steps=2)

    monkeypatch.setattr("tfdist.estimator.train.early_stopping.time.sleep", sleep)
    with tf.Graph().as_default():
        step = v1.assign_add(v1.train.create_global_step(), 1)
        with v1.train.SingularMonitoredSession(hooks=[hook]) as session:
            calls = 0
            while not session.should_stop():
                session.run(step)
                calls += 1
    # The first call is before the step; two looks find nothing, the third finds the checkpoint.
    assert waits == [30, 30]
    assert calls in (3, 4)
