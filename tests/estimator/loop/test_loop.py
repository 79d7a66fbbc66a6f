"""Estimator.train: steps, checkpoints, log lines, summaries, hooks."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

import tfdist.estimator as tfe

Make = Callable[..., Any]


class Count(v1.train.SessionRunHook):  # type: ignore[misc]
    """Counts session calls and remembers what a hook is told."""

    def __init__(self, name: str = "", calls: list[str] | None = None) -> None:
        self.name = name
        self.calls = [] if calls is None else calls
        self.runs = 0

    def begin(self) -> None:
        self.calls.append(f"{self.name}begin")

    def after_create_session(self, session: Any, coord: Any) -> None:
        self.calls.append(f"{self.name}create")

    def before_run(self, run_context: Any) -> None:
        self.calls.append(f"{self.name}before")

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.calls.append(f"{self.name}after")
        self.runs += 1

    def end(self, session: Any) -> None:
        self.calls.append(f"{self.name}end")


@pytest.fixture
def estimator(make: Make) -> tfe.Estimator:
    return make()


def _step(estimator: tfe.Estimator) -> int:
    return int(estimator.get_variable_value("global_step"))


# How long.


def test_steps_are_counted_from_where_training_resumes_and_max_steps_from_0(
    estimator: tfe.Estimator, numbers: Make, saved_steps: Make
) -> None:
    assert _step(estimator.train(numbers(), steps=3)) == 3
    assert _step(estimator.train(numbers(), steps=2)) == 5
    assert saved_steps(estimator.model_dir) == [0, 3, 5]
    count = Count()
    assert _step(estimator.train(numbers(), max_steps=7, hooks=[count])) == 7
    assert count.runs == 2


def test_a_reached_max_steps_builds_nothing(
    estimator: tfe.Estimator, numbers: Make, logged: list[str]
) -> None:
    estimator.train(numbers(), max_steps=2)
    logged.clear()

    def no_input() -> Any:
        raise AssertionError("not called here")

    assert estimator.train(no_input, max_steps=2) is estimator
    assert logged == ["Skipping training since max_steps has already saved."]


def test_the_end_of_the_input_ends_training_with_a_checkpoint(
    estimator: tfe.Estimator, numbers: Make, saved_steps: Make, read_events: Make
) -> None:
    estimator.train(numbers(batches=3))
    assert saved_steps(estimator.model_dir) == [0, 3]
    estimator.train(numbers(batches=2), steps=10)
    assert saved_steps(estimator.model_dir) == [0, 3, 5]
    assert read_events(estimator.model_dir) == {}  # Summaries are switched off.


def test_an_empty_input_makes_no_steps_and_says_so(
    estimator: tfe.Estimator, numbers: Make, saved_steps: Make, logged: list[str]
) -> None:
    estimator.train(numbers(batches=0), steps=3)
    assert saved_steps(estimator.model_dir) == [0]
    line = "Training with estimator made no steps. Perhaps input is empty or misspecified."
    assert line in logged


def test_a_hook_that_raises_stop_iteration_ends_training_normally(
    estimator: tfe.Estimator, numbers: Make, saved_steps: Make
) -> None:
    class Stop(Count):
        def before_run(self, run_context: Any) -> None:
            if self.runs == 2:
                raise StopIteration

    estimator.train(numbers(), hooks=[Stop()])
    assert saved_steps(estimator.model_dir) == [0, 2]


def test_an_error_of_the_model_ends_training_and_is_raised(
    estimator: tfe.Estimator, numbers: Make
) -> None:
    class Fail(Count):
        def after_run(self, run_context: Any, run_values: Any) -> None:
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        estimator.train(numbers(), steps=2, hooks=[Fail()])


# Checkpoints.


def test_checkpoints_are_written_at_the_start_at_each_interval_and_at_the_end(
    make: Make, numbers: Make, saved_steps: Make, tmp_path: Path
) -> None:
    make(save_checkpoints_steps=4).train(numbers(), max_steps=10)
    assert saved_steps(tmp_path) == [0, 4, 8, 10]
    assert (tmp_path / "graph.pbtxt").exists()
    assert len(list(tmp_path.glob("*.meta"))) == 4
    state = (tmp_path / "checkpoint").read_text()
    assert state.startswith('model_checkpoint_path: "model.ckpt-10"')


def test_a_resumed_training_that_keeps_all_checkpoints_names_its_newest(
    make: Make, numbers: Make, tmp_path: Path
) -> None:
    for max_steps in (2, 4):
        estimator = make(save_checkpoints_steps=2, keep_checkpoint_max=None)
        estimator.train(numbers(), max_steps=max_steps)
    assert estimator.latest_checkpoint() == str(tmp_path / "model.ckpt-4")


def test_a_saver_deletes_the_oldest_and_does_not_warn_of_what_it_calls_itself(
    make: Make, numbers: Make, saved_steps: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from tensorflow.python.util import deprecation

    deprecation._PRINTED_WARNING.clear()  # Each warning is printed once in a process.
    estimator = make(save_checkpoints_steps=1, keep_checkpoint_max=2)
    for max_steps in (2, 4):
        estimator.train(numbers(), max_steps=max_steps)
        assert saved_steps(tmp_path) == [max_steps - 1, max_steps]
    assert "saver.py" not in caplog.text
    assert deprecation._PRINTED_WARNING


def test_checkpoints_can_be_switched_off(
    make: Make, numbers: Make, saved_steps: Make, tmp_path: Path
) -> None:
    estimator = make(save_checkpoints_steps=None, save_checkpoints_secs=None)
    estimator.train(numbers(), max_steps=2)
    assert saved_steps(tmp_path) == []
    listener = v1.train.CheckpointSaverListener()
    with pytest.raises(ValueError, match="should be a CheckpointSaverHook to use saving_listeners"):
        estimator.train(numbers(), max_steps=2, saving_listeners=[listener])


def test_the_graph_is_left_out_of_checkpoints_on_demand(
    make: Make, numbers: Make, tmp_path: Path
) -> None:
    make(checkpoint_save_graph_def=False).train(numbers(), steps=1)
    assert not list(tmp_path.glob("*.meta")) and not (tmp_path / "graph.pbtxt").exists()


def test_a_users_saver_hook_replaces_the_estimators(
    make: Make, numbers: Make, saved_steps: Make, tmp_path: Path
) -> None:
    own = v1.train.CheckpointSaverHook(
        str(tmp_path), save_steps=2, saver=None, checkpoint_basename="own.ckpt"
    )
    calls: list[str] = []

    class Listen(v1.train.CheckpointSaverListener):  # type: ignore[misc]
        def after_save(self, session: Any, global_step_value: int) -> None:
            calls.append(f"saved {global_step_value}")

    estimator = make()
    estimator.train(numbers(), max_steps=3, hooks=[own], saving_listeners=[Listen()])
    assert saved_steps(tmp_path) == []
    names = sorted(path.stem for path in tmp_path.glob("*.index"))
    assert names == ["own.ckpt-0", "own.ckpt-2", "own.ckpt-3"]
    assert calls == ["saved 0", "saved 2", "saved 3"]


def test_saving_listeners_are_told_of_every_checkpoint_and_can_stop_training(
    make: Make, numbers: Make
) -> None:
    calls: list[str] = []

    class Listen(v1.train.CheckpointSaverListener):  # type: ignore[misc]
        def begin(self) -> None:
            calls.append("begin")

        def before_save(self, session: Any, global_step_value: int) -> None:
            calls.append(f"before {global_step_value}")

        def after_save(self, session: Any, global_step_value: int) -> bool:
            calls.append(f"after {global_step_value}")
            return global_step_value == 4

        def end(self, session: Any, global_step_value: int) -> None:
            calls.append(f"end {global_step_value}")

    estimator = make(save_checkpoints_steps=2)
    estimator.train(numbers(), max_steps=9, saving_listeners=[Listen()])
    saves = [f"{when} {step}" for step in (0, 2, 4) for when in ("before", "after")]
    assert calls == ["begin", *saves, "end 4"]


# Log lines and summaries.


def test_the_log_says_what_tf_estimators_did(
    make: Make, numbers: Make, tmp_path: Path, logged: list[str]
) -> None:
    make(log_step_count_steps=2, device={"device": "/device:CPU:1"}).train(numbers(), max_steps=4)
    text = "\n".join(logged)
    for line in (
        "Calling model_fn.",
        "Done calling model_fn.",
        "host_call: 2 gradients (36 bytes) from /device:CPU:1 to /device:CPU:0",
        "Create CheckpointSaverHook.",
        "Graph was finalized.",
        "Running local_init_op.",
        f"Saving checkpoints for 0 into {tmp_path}/model.ckpt.",
        f"Saving checkpoints for 4 into {tmp_path}/model.ckpt.",
    ):
        assert line in text
    for start in ("loss = ", "global_step/sec: ", "Loss for final step: "):
        assert any(line.startswith(start) for line in logged), start
    losses = [line for line in logged if line.startswith("loss = ")]
    assert losses[0].endswith(", step = 0")
    # The global step is read while the step runs, before or after it is counted.
    assert re.search(r", step = [23] \(.* sec\)$", losses[1])


def test_a_summary_called_loss_of_the_users_own_is_the_only_one(
    make: Make, numbers: Make, tmp_path: Path, read_events: Make
) -> None:
    def model_fn(features: Any, mode: str, labels: Any) -> tfe.EstimatorSpec:
        v1.summary.scalar("loss", tf.constant(7.0))
        v1.summary.scalar("rate", tf.constant(0.5))
        return tfe.EstimatorSpec(mode, loss=tf.constant(1.0), train_op=tf.no_op())

    make(model_fn, save_summary_steps=1).train(numbers(), steps=1)
    events = read_events(tmp_path)
    assert events["loss"] == [(1, 7.0)]
    assert events["rate"] == [(1, 0.5)]
    assert "loss_1" not in events


# Hooks.


def test_hooks_are_called_as_in_any_monitored_session_in_tf_estimators_order(
    make: Make, dense: Make, numbers: Make
) -> None:
    calls: list[str] = []
    model_fn = dense(
        training_chief_hooks=[Count("chief ", calls)], training_hooks=[Count("model's ", calls)]
    )
    count = Count()
    estimator = make(model_fn)
    estimator.train(numbers(), steps=2, hooks=[count, Count("user's ", calls)])
    begins = [call for call in calls if call.endswith("begin")]
    assert begins == ["chief begin", "user's begin", "model's begin"]
    assert count.calls == ["begin", "create", *["before", "after"] * 2, "end"]


def test_a_loss_that_is_not_a_number_ends_training(make: Make, numbers: Make) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
        step = v1.train.get_global_step()
        bad = tf.where(tf.equal(step, 2), np.nan, 1.0)
        with tf.control_dependencies([bad]):
            count = v1.assign_add(step, 1)
        return tfe.EstimatorSpec(mode, loss=bad, train_op=count)

    count = Count()
    with pytest.raises(v1.train.NanLossDuringTrainingError):
        make(model_fn).train(numbers(), steps=9, hooks=[count])
    assert count.runs == 3  # The user's hooks have seen the bad step.


# The user's functions.


def test_the_users_functions_get_what_they_name(numbers: Make, tmp_path: Path) -> None:
    seen: dict[str, Any] = {}

    def model_fn(
        features: Any, labels: Any, mode: str, params: Any, config: Any
    ) -> tfe.EstimatorSpec:
        seen.update(features=features, labels=labels, model=(mode, params, config.model_dir))
        return tfe.EstimatorSpec(mode, loss=tf.constant(1.0), train_op=tf.no_op())

    def input_fn(
        mode: str, params: Any, config: Any, input_context: Any = "none"
    ) -> tf.data.Dataset:
        seen.update(input=(mode, params, config.model_dir, input_context))
        return numbers()()

    estimator = tfe.Estimator(model_fn, tmp_path, params={"a": 1})
    estimator.train(input_fn, steps=1)
    assert seen["model"] == ("train", {"a": 1}, str(tmp_path))
    assert seen["input"] == (*seen["model"], "none")
    assert (seen["features"]["x"].shape.rank, seen["labels"].shape.rank) == (2, 2)


def test_input_may_be_tensors(make: Make) -> None:
    def input_fn() -> Any:
        return {"x": tf.ones([4, 2])}, tf.ones([4, 3])

    estimator = make()
    assert _step(estimator.train(input_fn, steps=3)) == 3


def _without_labels(features: Any, mode: str) -> Any:
    raise AssertionError("not called here")


@pytest.mark.parametrize(
    ("model_fn", "message"),
    [
        (_without_labels, "does not take labels, but input_fn returns labels"),
        (
            lambda features, labels, mode: {"loss": tf.constant(1.0)},
            r"model_fn should return an EstimatorSpec, got {'loss'",
        ),
        (
            lambda features, labels, mode: tfe.EstimatorSpec("eval", loss=tf.constant(1.0)),
            "of mode 'eval' when it was called with mode 'train'",
        ),
    ],
)
def test_a_model_fn_that_does_not_fit_is_refused(
    numbers: Make, tmp_path: Path, model_fn: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        tfe.Estimator(model_fn, tmp_path).train(numbers(), steps=1)


def test_the_seed_makes_two_trainings_equal(make: Make, numbers: Make) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
        v1.get_variable("kernel", [3], initializer=v1.random_normal_initializer())
        return tfe.EstimatorSpec(mode, loss=tf.constant(1.0), train_op=tf.no_op())

    def kernel(folder: str, seed: int) -> Any:
        estimator = make(model_fn, folder, tf_random_seed=seed).train(numbers(), steps=1)
        return estimator.get_variable_value("kernel")

    one, same, other = kernel("a", 1), kernel("b", 1), kernel("c", 2)
    np.testing.assert_array_equal(one, same)
    assert np.any(one != other)


def test_the_callers_eager_mode_is_untouched(estimator: tfe.Estimator, numbers: Make) -> None:
    estimator.train(numbers(), steps=1)
    assert float(tf.constant(1.0) + 1.0) == 2.0


def test_a_users_scaffold_is_used(make: Make, numbers: Make) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
        kernel = v1.get_variable("kernel", [], initializer=v1.zeros_initializer())

        def fill(scaffold: Any, session: Any) -> None:
            session.run(assign)

        assign = kernel.assign(5.0)
        scaffold = v1.train.Scaffold(init_fn=fill, saver=v1.train.Saver({"renamed": kernel}))
        return tfe.EstimatorSpec(
            mode, loss=tf.constant(1.0), train_op=tf.no_op(), scaffold=scaffold
        )

    estimator = make(model_fn).train(numbers(), steps=1)
    assert estimator.get_variable_names() == ["renamed"]
    assert estimator.get_variable_value("renamed") == 5.0


# Around the Estimator.


def test_a_chief_beside_a_listed_evaluator_trains_without_a_server(
    dense: Make, numbers: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = '{"chief": ["localhost:9990"], "evaluator": ["localhost:9991"]}'
    task = '{"type": "chief", "index": 0}'
    monkeypatch.setenv("TF_CONFIG", f'{{"cluster": {cluster}, "task": {task}}}')
    estimator = tfe.Estimator(dense(), tmp_path)
    assert estimator.config.master == "grpc://localhost:9990"
    estimator.train(numbers(), steps=1)
    assert estimator.evaluate(numbers(), steps=1)["global_step"] == 1
    assert next(estimator.predict(numbers()))["output"].shape == (3,)


WITHOUT_EAGER = """
import sys
import tensorflow as tf
import tfdist.estimator as tfe

v1 = tf.compat.v1
v1.disable_eager_execution()

def input_fn():
    dataset = v1.data.Dataset.from_tensors(({"x": [[1.0]]}, [[2.0]])).repeat(3)
    return v1.data.make_one_shot_iterator(dataset).get_next()

def model_fn(features, labels, mode):
    weight = v1.get_variable("weight", [1, 1], initializer=v1.zeros_initializer())
    output = tf.matmul(features["x"], weight)
    if mode == tfe.ModeKeys.PREDICT:
        return tfe.EstimatorSpec(mode, predictions={"output": output})
    loss = v1.losses.mean_squared_error(labels, output)
    optimizer = v1.train.GradientDescentOptimizer(0.25)
    step = optimizer.minimize(loss, v1.train.get_global_step())
    return tfe.EstimatorSpec(mode, loss=loss, train_op=step)

estimator = tfe.Estimator(model_fn, sys.argv[1])
estimator.train(input_fn, max_steps=2)
print(estimator.evaluate(input_fn)["loss"], estimator.get_variable_value("weight")[0, 0])
print([float(p["output"][0]) for p in estimator.predict(input_fn)])
"""


@pytest.mark.processes
def test_it_works_with_eager_execution_disabled(tmp_path: Path, fake_cluster: Any) -> None:
    # By hand: 0 + 0.5 * (2 - 0) = 1, 1 + 0.5 * (2 - 1) = 1.5; the loss then is 0.25.
    program = tmp_path / "program.py"
    program.write_text(WITHOUT_EAGER)
    command = [str(program), str(tmp_path / "model")]
    [run] = fake_cluster.run_script(command, engine="none", forked=True)
    assert run.stdout.split("\n")[:2] == ["0.25 1.5", "[1.5, 1.5, 1.5]"]
