"""Hooks that end training when evaluations say so."""

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1
from brief_training import Steps

import tfdist.estimator as tfe
from tfdist.estimator.experimental import (
    make_early_stopping_hook,
    stop_if_higher_hook,
    stop_if_lower_hook,
    stop_if_no_decrease_hook,
    stop_if_no_increase_hook,
)
from tfdist.estimator.train.early_stopping import read_eval_metrics

Make = Callable[..., Any]
STOP = "signal_early_stopping/STOP"


@pytest.fixture
def estimator(make: Make) -> tfe.Estimator:
    """An Estimator whose evaluations have been (step, loss, accuracy) as below."""
    estimator: tfe.Estimator = make()
    with tf.Graph().as_default(), v1.summary.FileWriter(estimator.eval_dir()) as writer:
        for step, loss, accuracy in [(1000, 0.8, 0.5), (2000, 0.7, 0.6), (3000, 0.4, 0.7)]:
            _write(writer, step, loss=loss, accuracy=accuracy)
    return estimator


def _write(writer: Any, step: int, **values: float) -> None:
    parts = [v1.Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
    writer.add_summary(v1.Summary(value=parts), step)


def _stops(*hooks: Any) -> bool:
    """Runs one step with the hooks and says whether they ask to stop."""
    with tf.Graph().as_default():
        step = v1.assign_add(v1.train.create_global_step(), 1)
        with v1.train.SingularMonitoredSession(hooks=hooks) as session:
            session.run(step)
            return bool(session.should_stop())


# Reading.


def test_the_metrics_of_all_evaluations_are_read_by_step(estimator: tfe.Estimator) -> None:
    metrics = read_eval_metrics(estimator.eval_dir())
    assert list(metrics) == [1000, 2000, 3000]
    assert metrics[2000] == pytest.approx({"loss": 0.7, "accuracy": 0.6})


def test_a_folder_that_does_not_exist_holds_no_metrics(tmp_path: Path) -> None:
    assert read_eval_metrics(tmp_path / "nothing") == {}
    assert read_eval_metrics(tmp_path) == {}


def test_several_files_are_read_and_a_corrupt_one_as_far_as_it_goes(
    estimator: tfe.Estimator, logged: list[str]
) -> None:
    folder = estimator.eval_dir()
    (file,) = Path(folder).glob("events.out.tfevents.*")
    whole = file.read_bytes()
    corrupt = bytearray(whole)
    corrupt[-5] ^= 255  # in the last record's checksum
    file.with_name("events.out.tfevents.0.other").write_bytes(bytes(corrupt))
    file.unlink()
    assert list(read_eval_metrics(folder)) == [1000, 2000]
    assert any("corrupt" in line and "tfevents.0.other" in line for line in logged)
    file.write_bytes(whole)
    assert list(read_eval_metrics(folder)) == [1000, 2000, 3000]


# Deciding. Whether to stop was computed with tf.estimator 2.15.


@pytest.mark.parametrize(
    ("make_hook", "metric", "limit", "min_steps", "expected"),
    [
        (stop_if_higher_hook, "accuracy", 0.6, 0, True),
        (stop_if_higher_hook, "accuracy", 0.7, 0, False),
        (stop_if_higher_hook, "accuracy", 0.55, 2500, True),
        (stop_if_higher_hook, "accuracy", 0.4, 3500, False),
        (stop_if_lower_hook, "loss", 0.75, 0, True),
        (stop_if_lower_hook, "loss", 0.4, 0, False),
        # The loss only falls: the first evaluation stays the best.
        (stop_if_no_increase_hook, "loss", 2000, 0, True),
        (stop_if_no_increase_hook, "loss", 2001, 0, False),
        (stop_if_no_increase_hook, "loss", 1000, 2000, True),
        (stop_if_no_decrease_hook, "accuracy", 2000, 0, True),
        (stop_if_no_decrease_hook, "accuracy", 2001, 0, False),
        (stop_if_no_decrease_hook, "loss", 2000, 0, False),
    ],
)
def test_a_hook_stops_by_the_evaluations_since_a_step(
    estimator: tfe.Estimator,
    make_hook: Make,
    metric: str,
    limit: float,
    min_steps: int,
    expected: bool,
) -> None:
    assert _stops(make_hook(estimator, metric, limit, None, min_steps)) == expected


@pytest.mark.parametrize("make_hook", [stop_if_no_increase_hook, stop_if_no_decrease_hook])
def test_any_number_is_better_than_none(
    estimator: tfe.Estimator, tmp_path: Path, make_hook: Make
) -> None:
    folder = str(tmp_path / "other")
    with tf.Graph().as_default(), v1.summary.FileWriter(folder) as writer:
        for step, loss in [(1000, math.nan), (2000, 0.5), (3000, math.nan)]:
            _write(writer, step, loss=loss)
    assert not _stops(make_hook(estimator, "loss", 2000, folder))
    assert _stops(make_hook(estimator, "loss", 1000, folder))


def test_another_folder_of_evaluations_can_be_named(
    estimator: tfe.Estimator, tmp_path: Path
) -> None:
    assert not _stops(stop_if_higher_hook(estimator, "accuracy", 0.1, str(tmp_path / "other")))


def test_a_metric_that_an_evaluation_lacks_is_a_key_error(estimator: tfe.Estimator) -> None:
    with pytest.raises(KeyError, match="recall"):
        _stops(stop_if_higher_hook(estimator, "recall", 0.5))


def test_one_of_several_hooks_suffices(estimator: tfe.Estimator) -> None:
    calm = stop_if_higher_hook(estimator, "accuracy", 0.9)
    assert _stops(calm, stop_if_lower_hook(estimator, "loss", 0.5))
    assert not _stops(calm, stop_if_lower_hook(estimator, "loss", 0.1))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"estimator": object()}, TypeError, "must have type"),
        ({"should_stop_fn": True}, TypeError, "must be callable"),
        ({"run_every_steps": 9}, ValueError, "Only one of `run_every_secs` and `run_every_steps`"),
        ({"run_every_secs": None}, ValueError, "Either every_secs or every_steps"),
    ],
)
def test_what_cannot_work_is_refused(
    estimator: tfe.Estimator, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make_early_stopping_hook(
            **{"estimator": estimator, "should_stop_fn": lambda: True, **arguments}
        )


def test_a_hook_for_something_else_than_an_estimator_is_refused() -> None:
    with pytest.raises(TypeError, match=r"must have type tfdist.estimator.Estimator. Got: <class"):
        stop_if_lower_hook(None, "loss", 0.5)


# In a training.


def _step(estimator: tfe.Estimator) -> int:
    return int(estimator.get_variable_value("global_step"))


def test_the_function_is_asked_at_the_first_step_and_then_at_the_interval(
    estimator: tfe.Estimator, numbers: Make
) -> None:
    requested: list[int] = []
    count = Steps()

    def should_stop() -> bool:
        requested.append(count.steps)
        return False

    hook = make_early_stopping_hook(estimator, should_stop, run_every_secs=None, run_every_steps=3)
    estimator.train(numbers(), hooks=[count, hook], steps=8)
    # The step is read before or after its own update, so a call may be one later or earlier.
    assert requested[0] == 1 and len(requested) in (2, 3)
    assert all(2 <= b - a <= 4 for a, b in itertools.pairwise(requested))


def test_training_with_evaluation_ends_early(make: Make, numbers: Make, logged: list[str]) -> None:
    estimator = make(save_checkpoints_steps=5)
    hook = stop_if_lower_hook(estimator, "loss", 1e6, run_every_secs=None, run_every_steps=3)
    metrics, _ = tfe.train_and_evaluate(
        estimator,
        tfe.TrainSpec(numbers(), max_steps=40, hooks=[hook]),
        tfe.EvalSpec(numbers(batches=2), throttle_secs=0),
    )
    # Asked after steps 1, 4 and 7; the first evaluation is that of step 5. The step is read before
    # or after its own update, so the last call may come one step later. tf.estimator 2.15: 7.
    assert _step(estimator) in (7, 8)
    assert metrics is not None and metrics["global_step"] == _step(estimator)
    assert any(line.startswith("Requesting early stopping at global step ") for line in logged)
    assert any(line.startswith('At step 5, metric "loss" has value') for line in logged)


def test_two_replicas_stop_together(make: Make, numbers: Make) -> None:
    estimator = make(device={"num_replicas": 2})
    for last in (2, 4):  # Asked after the first step of each training; stopped one step later.
        hook = make_early_stopping_hook(estimator, lambda: True)
        assert _step(estimator.train(numbers(), hooks=[hook])) == last
    assert estimator.get_variable_value(STOP) == False  # noqa: E712


# Checkpoints of tf.estimator.


@pytest.fixture
def train(make: Make, numbers: Make) -> Make:
    def train(*, with_hook: bool, steps: int = 2, stop: bool = False) -> tfe.Estimator:
        estimator = make()
        hook = make_early_stopping_hook(estimator, lambda: stop)
        return estimator.train(numbers(), steps=steps, hooks=[hook] * with_hook)

    return train


def test_a_checkpoint_that_tf_estimator_has_stopped_early_is_resumed(
    train: Make, tmp_path: Path
) -> None:
    # What tf.estimator 2.15 saves after an early stop: the variable, with True.
    with tf.Graph().as_default(), v1.Session() as session:
        v1.train.create_global_step()
        v1.get_variable("kernel", [2, 3])
        v1.get_variable("bias", [3])
        v1.get_variable(STOP, [], tf.bool, v1.constant_initializer(True), trainable=False)
        session.run(v1.global_variables_initializer())
        v1.train.Saver(save_relative_paths=True).save(
            session, str(tmp_path / "model.ckpt"), global_step=0
        )
    estimator = train(with_hook=True)
    assert _step(estimator) == 2
    assert estimator.get_variable_value(STOP) == False  # noqa: E712
    assert _step(train(with_hook=False)) == 4


def test_the_hook_can_be_added_to_a_training_that_began_without(train: Make) -> None:
    train(with_hook=False)
    estimator = train(with_hook=True)
    assert _step(estimator) == 4
    assert STOP not in estimator.get_variable_names()
