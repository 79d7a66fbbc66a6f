"""DeviceLoggingTensorHook: tensors of the step, also inside a loop of steps."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

import tfdist.estimator as tfe
from tfdist.ipu.ipu_session_run_hooks import IPULoggingTensorHook

Make = Callable[..., Any]
Hook = tfe.DeviceLoggingTensorHook
ALL = Hook.LoggingMode.ALL


def _run(hook: Any, build: Callable[[], Any], logged: list[str], calls: int = 3) -> list[list[str]]:
    """Runs what `build` makes, and returns the lines of each call and of the end."""
    said: list[list[str]] = []
    with tf.Graph().as_default():
        fetch = build()
        logged.clear()
        with v1.train.SingularMonitoredSession(hooks=[hook]) as session:
            logged.clear()
            for _ in range(calls):
                session.run(fetch)
                said.append([*logged])
                logged.clear()
    return [*said, [*logged]]


def _count() -> tf.Tensor:
    return v1.assign_add(v1.get_variable("n", [], initializer=v1.zeros_initializer()), 1.0)


# A session.


def test_a_line_comes_at_the_first_call_and_then_at_the_interval(logged: list[str]) -> None:
    hook = Hook(every_n_iter=2)
    for _ in range(2):  # The second time in another graph.
        lines = _run(hook, lambda: hook.log({"n": _count()}), logged)
        values = [[line.split(" (")[0] for line in said] for said in lines]
        assert values == [["n = 1.0"], [], ["n = 3.0"], []]
        assert lines[2][0].endswith(" sec)")


def _two() -> list[tf.Tensor]:
    return [tf.constant(42.0, name="foo"), tf.constant(43.0, name="bar")]


@pytest.mark.parametrize(
    ("options", "tensors", "line"),
    [
        ({}, lambda: {"n": _count()}, "n = 3.0"),
        ({"logging_mode": ALL}, lambda: {"n": _count()}, "n = [1. 2. 3.]"),
        ({}, _two, "foo:0 = 42.0, bar:0 = 43.0"),
        (
            {"formatter": lambda named: f"n is {named['n']:.3f}"},
            lambda: {"n": _count()},
            "n is 3.000",
        ),
    ],
)
def test_at_the_end_the_last_values_or_all_are_logged_by_their_names(
    logged: list[str], options: dict[str, Any], tensors: Callable[[], Any], line: str
) -> None:
    hook = Hook(at_end=True, **options)
    assert _run(hook, lambda: hook.log(tensors()), logged) == [[], [], [], [line]]


def test_seconds_may_be_the_interval_whatever_the_time_of_day(
    logged: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count(0.0, 600.0)
    monkeypatch.setattr("tfdist.estimator.graph.steady_timer.monotonic", lambda: next(clock))
    hook = Hook(every_n_secs=1000)
    lines = _run(hook, lambda: hook.log(_count()), logged)
    assert [len(said) for said in lines] == [1, 0, 1, 0]


# What is refused.


def test_arguments_that_exclude_each_other_or_miss_are_refused() -> None:
    with pytest.raises(ValueError, match="Cannot provide both every_n_iter and every_n_secs"):
        Hook(every_n_iter=5, every_n_secs=5)
    with pytest.raises(ValueError, match="Either every_n_iter, every_n_secs or at_end should be"):
        Hook()
    with pytest.raises(
        ValueError, match=r"logging_mode must be LoggingMode.LAST or ALL, got 'ALL'"
    ):
        Hook(at_end=True, logging_mode="ALL")


@pytest.mark.parametrize("value", ["foo", [1.0], {"a": 1.0}])
def test_only_tensors_are_logged(graph: tf.Graph, value: Any) -> None:
    with pytest.raises(TypeError, match=r"Expected `tf\.Tensor`, got <class"):
        Hook(at_end=True).log(value)


def test_log_is_called_once_in_a_model(graph: tf.Graph) -> None:
    hook = Hook(at_end=True)
    with pytest.raises(RuntimeError, match="Did you forget to call the log function"):
        hook.begin()
    hook.log(tf.constant(1.0))
    with pytest.raises(RuntimeError, match="Cannot use this hook object's log function more than"):
        hook.log(tf.constant(1.0))


# An Estimator.


@pytest.mark.parametrize(
    ("way", "iterations"), [("counted", 1), ("host_call", 3), ("uncounted", 3)]
)
def test_every_step_of_a_training_is_logged(
    make: Make, dense: Make, numbers: Make, logged: list[str], way: str, iterations: int
) -> None:
    hook = Hook(at_end=True, logging_mode=ALL)

    def model_fn(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
        spec = dense(way=way)(features, labels, mode)
        hook.log({"shape": tf.shape(features["x"]), "loss": spec.loss})  # The op is not used.
        return spec._replace(training_hooks=[hook])

    estimator = make(model_fn, device={"iterations_per_loop": iterations})
    for _ in range(2):
        logged.clear()
        estimator.train(numbers(), steps=6)
        (line,) = (line for line in logged if line.startswith("shape = "))
        assert line.count("[4 2]") == 6
        assert len(line.split("loss = [")[1].rstrip("]").split()) == 6


def test_evaluation_and_prediction_are_logged_too(
    dense: Make, numbers: Make, tmp_path: Path, logged: list[str]
) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
        hook = Hook(every_n_iter=1)
        hook.log({mode: tf.shape(features["x"])[0]})
        return dense(evaluation_hooks=[hook], prediction_hooks=[hook])(features, labels, mode)

    estimator = tfe.Estimator(model_fn, tmp_path)
    estimator.evaluate(numbers(batches=2))
    list(estimator.predict(numbers(batches=2)))
    lines = [line.split(" (")[0] for line in logged]
    assert lines.count("eval = 4") == 2
    assert lines.count("infer = 4") == 2


# The original's name.


def test_the_originals_hook_takes_its_arguments(logged: list[str]) -> None:
    hook = IPULoggingTensorHook(
        every_n_iter=1, logging_mode=IPULoggingTensorHook.LoggingMode.LAST, feed_name="own"
    )
    assert any("feed_name='own' has no effect" in line for line in logged)
    assert _run(hook, lambda: hook.log({"n": _count()}), logged)[0][0].startswith("n = 1.0")
    with pytest.raises(ValueError, match="replication_factor is 2; only 1 is supported"):
        IPULoggingTensorHook(at_end=True, replication_factor=2)


def test_of_two_replicas_the_first_is_logged(
    make: Make, dense: Make, numbers: Make, logged: list[str]
) -> None:
    hook = Hook(at_end=True, logging_mode=ALL)

    def model_fn(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
        hook.log({"batch": tf.shape(features["x"])[0]})
        return dense()(features, labels, mode)

    make(model_fn, device={"num_replicas": 2}).train(numbers(), hooks=[hook], steps=2)
    assert "batch = [4 4]" in logged
