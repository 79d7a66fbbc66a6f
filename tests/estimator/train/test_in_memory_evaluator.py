"""InMemoryEvaluatorHook: expected values are those of tf.estimator 2.15."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1
from brief_training import Steps

import tfdist.estimator as tfe
from tfdist.estimator.experimental import InMemoryEvaluatorHook
from tfdist.estimator.inputs import numpy_input_fn
from tfdist.strategies.values.sync_on_read import make_variable

Make = Callable[..., Any]


def _input_fn() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensors(({"x": [1.0, 2.0]}, [2.0, 4.0])).repeat()


def _few() -> tf.data.Dataset:
    return _input_fn().take(3)


def _estimator(model_dir: Path, scaffold: Any = None) -> tfe.Estimator:
    """Fits w in w * x; training and evaluation have a variable each that the other lacks."""

    def model_fn(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
        w = v1.get_variable("w", [], initializer=v1.zeros_initializer())
        error = features["x"] * w - labels
        loss = tf.reduce_mean(tf.square(error))
        if mode == tfe.ModeKeys.TRAIN:
            v1.get_variable("only_training", [])
            step = v1.train.get_global_step()
            train_op = v1.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=step)
            return tfe.EstimatorSpec(mode, loss=loss, train_op=train_op)
        own = v1.get_variable("only_evaluation", [], initializer=v1.constant_initializer(3.0))
        metrics = {"mae": v1.metrics.mean(tf.abs(error)), "own": (tf.identity(own), tf.no_op())}
        return tfe.EstimatorSpec(
            mode, loss=loss, eval_metric_ops=metrics, scaffold=scaffold and scaffold()
        )

    config = tfe.RunConfig(save_summary_steps=None, log_step_count_steps=None)
    return tfe.Estimator(model_fn, model_dir, config)


def test_evaluations_are_made_at_the_start_at_the_interval_and_at_the_end(
    tmp_path: Path, read_events: Make, saved_steps: Make
) -> None:
    count = Steps()
    estimator = _estimator(tmp_path)
    hook = InMemoryEvaluatorHook(
        estimator, _few, steps=math.inf, hooks=[count], name="own", every_n_iter=2
    )
    estimator.train(_input_fn, hooks=[hook], steps=5)
    events = read_events(tmp_path / "eval_own")
    assert [step for step, _ in events["loss"]] == [0, 2, 4, 5]
    np.testing.assert_allclose(
        [value for _, value in events["loss"]], [10.0, 0.625, 0.0390625, 0.00976562], rtol=1e-5
    )
    assert [value for _, value in events["own"]] == [3.0] * 4
    assert "checkpoint_path" not in events
    assert count.steps == 4 * 3
    assert not (tmp_path / "eval").exists()
    assert saved_steps(tmp_path) == [0, 5]


def test_a_hook_can_be_used_again_and_limits_an_endless_input(
    tmp_path: Path, read_events: Make
) -> None:
    estimator = _estimator(tmp_path)
    hook = InMemoryEvaluatorHook(estimator, _input_fn, steps=2, every_n_iter=2)
    estimator.train(_input_fn, hooks=[hook], steps=2)
    estimator.train(_input_fn, hooks=[hook], steps=2)
    steps = [step for step, _ in read_events(estimator.eval_dir())["loss"]]
    # Twice where the interval and an end meet, as in tf.estimator.
    assert steps == [0, 2, 2, 2, 4, 4]


def test_arrays_in_memory_are_read_from_the_start_each_time(
    tmp_path: Path, read_events: Make
) -> None:
    # tf.estimator's second evaluation finds the queue closed and reports zeros.
    estimator = _estimator(tmp_path)
    ones = np.ones(4, np.float32)
    input_fn = numpy_input_fn({"x": ones}, ones, batch_size=2, shuffle=False)
    hook = InMemoryEvaluatorHook(estimator, input_fn)
    estimator.train(_input_fn, hooks=[hook], steps=1)
    (_, first), (_, second) = read_events(estimator.eval_dir())["mae"]
    assert first == 1.0  # w is 0
    assert second == pytest.approx(0.0, abs=1e-6)  # 0.1 * 2 * (1 * 2 + 2 * 4) / 2 = 1


def test_the_input_fn_gets_the_batch_size_of_evaluations(make: Make, numbers: Make) -> None:
    sizes: list[int] = []

    def input_fn(params: dict[str, Any]) -> tf.data.Dataset:
        sizes.append(params["batch_size"])
        return numbers(batches=1, batch_size=params["batch_size"])()

    estimator = make(sizes={"eval_batch_size": 6})
    estimator.train(numbers(), hooks=[InMemoryEvaluatorHook(estimator, input_fn)], steps=1)
    assert set(sizes) == {6}


def test_a_loop_of_steps_is_evaluated_after_session_calls(
    make: Make, numbers: Make, read_events: Make
) -> None:
    estimator = make(device={"iterations_per_loop": 2})
    hook = InMemoryEvaluatorHook(estimator, numbers(batches=1), every_n_iter=2)
    estimator.train(numbers(), hooks=[hook], steps=6)
    assert [step for step, _ in read_events(estimator.eval_dir())["loss"]] == [0, 4, 6]


# What is refused.


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"every_n_iter": 0}, ValueError, "invalid every_n_iter=0"),
        ({"hooks": [1]}, TypeError, "must be SessionRunHook"),
    ],
)
def test_arguments_of_another_kind_are_refused(
    tmp_path: Path, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        InMemoryEvaluatorHook(_estimator(tmp_path), _few, **arguments)


def test_several_workers_without_a_strategy_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "TF_CONFIG",
        '{"cluster": {"worker": ["localhost:1", "localhost:2"]}, '
        '"task": {"type": "worker", "index": 0}}',
    )
    with pytest.raises(ValueError, match="supports only single machine"):
        InMemoryEvaluatorHook(_estimator(tmp_path), _few)


@pytest.mark.parametrize(
    ("scaffold", "what"),
    [
        (lambda: v1.train.Scaffold(saver=v1.train.Saver()), "custom saver"),
        (lambda: v1.train.Scaffold(init_fn=lambda scaffold, session: None), "custom init_fn"),
    ],
)
def test_a_scaffold_that_fills_variables_itself_is_refused(
    tmp_path: Path, scaffold: Any, what: str
) -> None:
    estimator = _estimator(tmp_path, scaffold)
    hook = InMemoryEvaluatorHook(estimator, _few)
    with pytest.raises(ValueError, match=f"does not support {what}"):
        estimator.train(_input_fn, hooks=[hook], steps=1)


def test_other_things_to_save_than_variables_are_refused(tmp_path: Path) -> None:
    def input_fn() -> Any:
        dataset = _input_fn()
        iterator = v1.data.make_one_shot_iterator(dataset)
        saveable = tf.data.experimental.make_saveable_from_iterator(iterator)
        v1.add_to_collection(v1.GraphKeys.SAVEABLE_OBJECTS, saveable)
        return iterator.get_next()

    estimator = _estimator(tmp_path)
    hook = InMemoryEvaluatorHook(estimator, _few)
    with pytest.raises(ValueError, match="does not support saveables other than global variables"):
        estimator.train(input_fn, hooks=[hook], steps=1)


def test_variables_that_each_worker_keeps_for_itself_are_refused(
    tmp_path: Path, graph: tf.Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = InMemoryEvaluatorHook(_estimator(tmp_path), _few)
    own = {"initial_value": 1.0, "name": "moving_mean", "trainable": False}
    make_variable(["/device:CPU:0"], own)
    monkeypatch.setattr(tfe.RunConfig, "num_worker_replicas", property(lambda config: 2))
    with pytest.raises(ValueError, match="each worker keeps for itself, such as moving_mean:0"):
        hook.begin()
