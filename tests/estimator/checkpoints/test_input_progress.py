"""An interrupted training goes on with the batch that follows: it ends with the same weights.

Each test's training updates its weight with every batch in an order that matters, so that equal
weights mean equal batches. In this process an interruption is an error that a hook raises.
"""

import json
import logging
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1
from brief_training import Fetch, Steps
from staged_model import MICRO, batches, make_pipelined

import tfdist.estimator as tfe
from tfdist.estimator.inputs import position

STEPS, EVERY = 12, 4
COLUMN = np.arange(40, dtype=np.float32)

InputFn = Callable[[], Any]


class Interruption(Exception):
    """Ends a training in the middle of it, as a kill does."""


def weighted(features: tf.Tensor) -> tf.Tensor:
    """Returns a sum in which the place of each value matters."""
    places = tf.cast(tf.range(1, tf.size(features) + 1), tf.float32)
    return tf.reduce_sum(tf.reshape(features, [-1]) * places)


def model_fn(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
    del labels
    weight = v1.get_variable("weight", [], initializer=v1.zeros_initializer())
    features = features["x"] if isinstance(features, dict) else features
    gradient = weighted(features)

    def host_call(gradient: tf.Tensor) -> tf.Operation:
        optimizer = v1.train.MomentumOptimizer(0.001, 0.9)
        return optimizer.apply_gradients([(gradient, weight)])

    gradient = gradient + 0.01 * weight
    return tfe.EstimatorSpec(mode, loss=gradient, host_call=(host_call, [gradient]))


def dataset() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(COLUMN)


def records() -> tf.data.Dataset:
    files = tf.data.Dataset.list_files(f"{RECORDS}/*.tfrecord")  # In random order, without a seed.
    values = files.interleave(tf.data.TFRecordDataset, cycle_length=2, num_parallel_calls=2)
    return values.map(lambda value: tf.io.decode_raw(value, tf.float32)[0]).repeat().batch(3)


def augmented() -> tf.data.Dataset:
    shifted = dataset().map(lambda x: x + tf.random.uniform([], maxval=9.0))
    return shifted.shuffle(10).batch(3).repeat().prefetch(2)


def generated() -> tf.data.Dataset:
    return tf.data.Dataset.from_generator(
        lambda: iter(range(200)), output_signature=tf.TensorSpec([], tf.float32)
    ).batch(3)


def own_iterator() -> Any:
    return v1.data.make_one_shot_iterator(dataset().repeat().batch(3)).get_next()


INPUTS: dict[str, InputFn] = {
    "slices": lambda: dataset().repeat().batch(3),
    "shuffled_without_a_seed": lambda: dataset().shuffle(1000).repeat().batch(3),
    "records": records,
    "augmented": augmented,
    "generated": generated,
    "own_iterator": own_iterator,
    "random_tensors": lambda: {"x": tf.random.uniform([3])},
    "numpy_shuffled": tfe.inputs.numpy_input_fn(
        {"x": COLUMN}, batch_size=3, num_epochs=None, shuffle=True, queue_capacity=20
    ),
}

RECORDS = ""


@pytest.fixture(scope="module", autouse=True)
def _records(tmp_path_factory: pytest.TempPathFactory) -> None:
    global RECORDS
    RECORDS = str(tmp_path_factory.mktemp("records"))
    for file in range(4):
        with tf.io.TFRecordWriter(f"{RECORDS}/{file}.tfrecord") as writer:
            for value in COLUMN[file::4]:
                writer.write(value.tobytes())


@pytest.fixture(autouse=True)
def _seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives each run the same seed; a run that is resumed would draw another one."""
    monkeypatch.setattr(position.secrets, "randbelow", lambda end: 41)


class Run:
    """A training in a folder, with any interruptions."""

    def __init__(self, folder: Path, input_fn: InputFn, **settings: Any) -> None:
        self.folder, self.input_fn = folder, input_fn
        self.model_fn = settings.pop("model_fn", model_fn)
        settings.setdefault("save_checkpoints_steps", EVERY)
        self.config = tfe.RunConfig(model_dir=folder, **settings)

    def train(self, *hooks: Any, interrupt_after: int | None = None, **limits: Any) -> "Run":
        def interrupt(calls: int, run: Any) -> None:
            if calls == interrupt_after:
                raise Interruption

        estimator = tfe.Estimator(self.model_fn, config=self.config)
        limits = limits or {"max_steps": STEPS}
        with pytest.raises(Interruption) if interrupt_after else nullcontext():
            estimator.train(self.input_fn, [*hooks, Steps(interrupt)], **limits)
        return self

    @property
    def weight(self) -> Any:
        reader = tf.train.load_checkpoint(str(self.folder))
        names = reader.get_variable_to_shape_map()
        return {name: reader.get_tensor(name).tolist() for name in names}

    @property
    def positions(self) -> dict[str, Any]:
        files = self.folder.glob("*.input")
        return {file.stem: json.loads(file.read_text()) for file in files}


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Run]:
    numbers = iter(range(9))
    return lambda input_fn, **settings: Run(tmp_path / f"{next(numbers)}", input_fn, **settings)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Returns the weights of an undisturbed training, for the name of an input."""

    @cache
    def undisturbed(name: str = "slices") -> Any:
        return Run(tmp_path_factory.mktemp(name), INPUTS[name]).train().weight

    return undisturbed


@pytest.mark.parametrize("name", [name for name in INPUTS if name != "slices"])
def test_two_interruptions_change_no_bit(
    run: Any, undisturbed: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = undisturbed(name)
    interrupted = run(INPUTS[name]).train(interrupt_after=7)
    monkeypatch.setattr(position.secrets, "randbelow", lambda end: 977)
    interrupted.train(interrupt_after=5)  # From step 4, to step 9.
    assert interrupted.positions["model.ckpt-8"]["batches"] == 8
    assert interrupted.train().weight == expected


def test_a_pipeline_goes_on_with_the_next_micro_batches(run: Any) -> None:
    def input_fn() -> tf.data.Dataset:
        return batches(MICRO)().shuffle(100).repeat()

    settings = {"model_fn": make_pipelined(optimizer="momentum"), "save_checkpoints_steps": 2}
    undisturbed = run(input_fn, **settings).train(max_steps=5)
    interrupted = run(input_fn, **settings).train(interrupt_after=3)
    assert interrupted.train(max_steps=5).weight == undisturbed.weight


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("shuffled_without_a_seed", {"gradient_accumulation": 3}),
        (
            "numpy_shuffled",
            {"num_replicas": 2, "gradient_accumulation": 2, "iterations_per_loop": 2},
        ),
    ],
)
def test_the_position_counts_the_batches_of_all_calls(
    run: Any, name: str, device: dict[str, int]
) -> None:
    settings = {"device": tfe.DeviceConfig(**device)}
    undisturbed = run(INPUTS[name], **settings).train()
    interrupted = run(INPUTS[name], **settings)
    calls = 6 // device.get("iterations_per_loop", 1)
    interrupted.train(interrupt_after=calls)
    per_step = device.get("gradient_accumulation", 1) * device.get("num_replicas", 1)
    assert interrupted.positions["model.ckpt-4"]["batches"] == 4 * per_step
    assert interrupted.train().weight == undisturbed.weight


def test_the_position_of_another_step_gives_other_weights(run: Any, undisturbed: Any) -> None:
    interrupted = run(INPUTS["slices"]).train(interrupt_after=7)
    file = interrupted.folder / "model.ckpt-4.input"
    file.write_text(file.read_text().replace("4,", "5,").replace("12,", "15,"))
    assert interrupted.train().weight != undisturbed()


def test_a_training_of_the_input_to_its_end_reads_each_batch_once(run: Any) -> None:
    def input_fn() -> tf.data.Dataset:
        return dataset().shuffle(40).batch(4)

    undisturbed = run(input_fn).train(steps=100)
    interrupted = run(input_fn).train(interrupt_after=10)
    assert interrupted.train(steps=100).weight == undisturbed.weight
    steps = tf.train.load_variable(str(interrupted.folder), "global_step")
    assert steps == 10


def test_a_training_that_was_interrupted_at_its_inputs_end_makes_no_step(run: Any) -> None:
    interrupted = run(lambda: dataset().batch(5), device=tfe.DeviceConfig(num_replicas=2))
    interrupted.train(interrupt_after=4)
    at_the_end = interrupted.weight
    assert interrupted.train(steps=100).weight == at_the_end
    assert not interrupted.positions.get("model.ckpt-4")


@pytest.mark.parametrize(
    ("name", "line", "steps_again"),
    [
        ("slices", "goes on after the 12 elements that 2 worker", 0),
        ("own_iterator", "begins at its start: the interrupted training had 2 worker", 4),
    ],
)
def test_with_other_workers_an_input_goes_on_where_they_had_taken_its_elements_in_turn(
    run: Any, undisturbed: Any, caplog: Any, name: str, line: str, steps_again: int
) -> None:
    interrupted = run(INPUTS[name]).train(interrupt_after=7)
    file = interrupted.folder / "model.ckpt-4.input"
    file.write_text(json.dumps({"batches": 2, "num_workers": 2, "elements": 12, "seed": 41}))
    caplog.set_level(logging.INFO, logger="tensorflow")
    interrupted.train(interrupt_after=6)
    assert line in caplog.text
    assert interrupted.positions["model.ckpt-8"]["batches"] == 8 - steps_again
    assert interrupted.positions["model.ckpt-8"]["num_workers"] == 1
    assert (interrupted.train().weight == undisturbed(name)) == (steps_again == 0)


def test_a_training_that_has_ended_leaves_no_position(run: Any) -> None:
    ended = run(INPUTS["slices"], keep_checkpoint_max=2).train()
    assert list(ended.positions) == ["model.ckpt-8"]


def test_a_training_that_was_interrupted_after_its_last_step_has_ended_once_it_is_called_again(
    run: Any,
) -> None:
    interrupted = run(INPUTS["slices"]).train(interrupt_after=4)
    assert "model.ckpt-4" in interrupted.train(max_steps=3).positions
    assert "model.ckpt-4" not in interrupted.train(max_steps=4).positions
    ended = run(INPUTS["slices"]).train(max_steps=4)
    assert interrupted.train().weight == ended.train().weight


def test_the_next_training_begins_its_input_at_the_start(run: Any) -> None:
    hook = Fetch(lambda _: "IteratorGetNext:0")
    run(INPUTS["slices"]).train(hook, steps=3).train(hook, steps=3)
    assert [batch[0] for batch in hook.values] == [0.0, 3.0, 6.0] * 2


def test_without_positions_an_input_begins_at_its_start(run: Any, undisturbed: Any) -> None:
    off = run(INPUTS["slices"], save_input=False).train(interrupt_after=7)
    assert not off.positions
    assert off.train().weight != undisturbed()
    on = run(INPUTS["slices"]).train(interrupt_after=7)
    off = Run(on.folder, INPUTS["slices"], save_input=False).train(interrupt_after=1)
    assert list(on.positions) == ["model.ckpt-0"]  # The checkpoint of step 4 was written again.


def test_a_log_says_how_many_batches_are_read_again(
    run: Any, caplog: pytest.LogCaptureFixture
) -> None:
    interrupted = run(INPUTS["slices"]).train(interrupt_after=7)
    assert "again" not in caplog.text
    caplog.set_level(logging.INFO, logger="tensorflow")
    interrupted.train()
    assert "where the interrupted training was: 4 batch(es) are read again." in caplog.text
    assert "Read 4 batch(es) again in 0." in caplog.text


@pytest.mark.parametrize("drops", [False, True])
def test_a_resumed_model_with_random_ops_is_reported(
    run: Any, caplog: pytest.LogCaptureFixture, drops: bool
) -> None:
    def dropping(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
        kept = tf.nn.dropout(features["x"], 0.5) if drops else features
        return model_fn(kept, labels, mode)

    interrupted = run(INPUTS["random_tensors"], model_fn=dropping).train(interrupt_after=7)
    assert "random op(s) of the model" not in caplog.text
    interrupted.train()
    assert ("1 random op(s) of the model, such as dropout/" in caplog.text) == drops


@pytest.mark.parametrize(
    ("drops", "settings", "is_said"),
    [(False, {}, True), (True, {}, False), (False, {"save_input": False}, False)],
)
def test_a_nan_that_a_restart_would_repeat_is_reported(
    run: Any, caplog: pytest.LogCaptureFixture, drops: bool, settings: Any, is_said: bool
) -> None:
    def diverging(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
        kept = tf.nn.dropout(features, 0.5) if drops else features
        spec = model_fn(kept, labels, mode)
        return spec._replace(loss=spec.loss + float("nan"))

    with pytest.raises(v1.train.NanLossDuringTrainingError):
        run(INPUTS["slices"], model_fn=diverging, **settings).train()
    assert (
        "A restart from the last checkpoint would end in the same way" in caplog.text
    ) == is_said


def test_an_input_that_is_too_short_is_refused(run: Any) -> None:
    interrupted = run(INPUTS["slices"]).train(interrupt_after=7)
    interrupted.input_fn = lambda: dataset().batch(3).take(2)
    with pytest.raises(ValueError, match="fewer batches than the 4 that the interrupted training"):
        interrupted.train()


def test_an_input_that_hooks_feed_begins_where_they_begin(
    run: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class Feed(v1.train.SessionRunHook):  # type: ignore[misc,name-defined]
        def before_run(self, run_context: Any) -> Any:
            return v1.train.SessionRunArgs(None, {"fed:0": [1.0, 2.0, 3.0]})

    fed = run(lambda: v1.placeholder(tf.float32, [3], "fed"))
    fed.train(Feed(), interrupt_after=7).train(Feed())
    assert "The input begins at its start: hooks of the program feed it." in caplog.text


def test_a_users_saver_and_its_own_class_save_positions(run: Any, undisturbed: Any) -> None:
    class OwnSaver(v1.train.Saver):  # type: ignore[misc,name-defined]
        pass

    def with_saver(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
        scaffold = v1.train.Scaffold(saver=OwnSaver(max_to_keep=1, defer_build=True))
        return model_fn(features, labels, mode)._replace(scaffold=scaffold)

    interrupted = run(INPUTS["slices"], model_fn=with_saver).train(interrupt_after=9)
    assert list(interrupted.positions) == ["model.ckpt-8"]
    assert interrupted.train().weight == undisturbed()


def test_seeds_of_the_input_stay_as_they_are(run: Any) -> None:
    """A shuffle with a seed, in a graph without one, has the order that TensorFlow gives it."""

    def input_fn() -> tf.data.Dataset:
        return dataset().shuffle(1000, seed=5).batch(3)

    with tf.Graph().as_default(), v1.Session() as session:
        batch = v1.data.make_one_shot_iterator(input_fn()).get_next()
        expected = session.run(batch).tolist()
    seen: list[Any] = []

    def watched(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
        features = tf.numpy_function(lambda x: seen.append(x.tolist()) or x, [features], tf.float32)
        return model_fn(tf.ensure_shape(features, [3]), labels, mode)

    run(input_fn, model_fn=watched).train(steps=1)
    assert seen[0] == expected
