"""The report that a launcher can read while an Estimator works."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfdist.estimator as tfe
from tfdist.estimator.loop import progress_report
from tfdist.process import progress_file
from tfdist.process.progress_file import Progress, ProgressFile, progress_environment
from tfdist.strategies import LocalStrategy
from tfdist.testing.run import wait_until

Make = Callable[..., Any]


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ProgressFile:
    """The file that the launcher of this process reads, before the process has a phase."""
    monkeypatch.setattr(progress_file._Current, "phase", Progress.phase)
    path = tmp_path / "progress"
    for name, value in progress_environment(path).items():
        monkeypatch.setenv(name, value)
    return ProgressFile(path)


def _read(file: ProgressFile) -> Progress:
    progress = file.read()
    assert progress is not None
    return progress


class Look(tfe.SessionRunHook):  # type: ignore[misc,name-defined]
    """Reads the file around each session call."""

    def __init__(self, file: ProgressFile) -> None:
        self.file = file
        self.seen: list[Progress] = []

    def before_run(self, *_: Any) -> None:
        self.seen.append(_read(self.file))

    after_run = end = before_run


def test_the_step_the_loss_and_the_examples_are_told_after_each_step(
    make: Make, file: ProgressFile
) -> None:
    def input_fn() -> Any:
        return tf.data.Dataset.from_tensors(({"x": tf.ones([4, 2])}, tf.ones([4, 3]))).repeat()

    look = Look(file)
    estimator = make()
    estimator.train(input_fn, steps=2)
    estimator.train(input_fn, steps=3, hooks=[look])
    assert [p.step for p in look.seen] == [2, 3, 3, 4, 4, 5, 5]
    assert [p.examples for p in look.seen] == [8.0, 12.0, 12.0, 16.0, 16.0, 20.0, 20.0]
    assert {p.total_steps for p in look.seen} == {5}
    assert {p.phase for p in look.seen} == {"training"}
    assert not any(p.in_step for p in look.seen)
    losses = [p.loss for p in look.seen[1::2]]
    assert losses == sorted(losses, reverse=True) and 0 < losses[-1] < losses[0]
    assert (_read(file).phase, _read(file).step) == ("starting", 5)


@pytest.mark.parametrize(
    ("loop", "replicas", "drop_remainder", "examples"),
    [(3, 1, True, 24.0), (3, 1, False, 24.0), (1, 2, True, 48.0)],
)
def test_loops_replicas_and_batches_of_unknown_size_are_counted(
    make: Make, file: ProgressFile, loop: int, replicas: int, drop_remainder: bool, examples: float
) -> None:
    def input_fn() -> Any:
        x = np.ones([40, 2], np.float32), np.ones([40, 3], np.float32)
        dataset = tf.data.Dataset.from_tensor_slices(({"x": x[0]}, x[1]))
        return dataset.repeat().batch(4, drop_remainder=drop_remainder)

    strategy = LocalStrategy(num_replicas=replicas) if replicas > 1 else None
    device = {"iterations_per_loop": loop}
    make(device=device, train_distribute=strategy).train(input_fn, steps=6, hooks=[])
    assert (_read(file).step, _read(file).examples) == (6, examples)


def test_saving_and_evaluating_are_told(make: Make, numbers: Make, file: ProgressFile) -> None:
    phases: list[str] = []

    class Listen(tfe.CheckpointSaverListener):  # type: ignore[misc,name-defined]
        def before_save(self, session: Any, global_step_value: int) -> None:
            phases.append(_read(file).phase)

    class Evaluate(tfe.SessionRunHook):  # type: ignore[misc,name-defined]
        def before_run(self, run_context: Any) -> None:
            phases.append(_read(file).phase)

    tfe.train_and_evaluate(
        make(),
        tfe.TrainSpec(numbers(), max_steps=2, saving_listeners=[Listen()]),
        tfe.EvalSpec(numbers(), steps=1, hooks=[Evaluate()]),
    )
    assert phases == ["saving", "saving", "evaluating"]


def test_an_evaluator_tells_which_step_it_has_evaluated(
    make: Make, numbers: Make, file: ProgressFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    make().train(numbers(), steps=3)
    monkeypatch.setenv("TF_CONFIG", '{"task": {"type": "evaluator", "index": 0}}')
    spec = tfe.EvalSpec(numbers(), steps=1, start_delay_secs=0)
    tfe.train_and_evaluate(make(), tfe.TrainSpec(numbers(), max_steps=3), spec)
    progress = _read(file)
    assert (progress.phase, progress.step, progress.total_steps) == ("starting", 3, 3)
    assert progress.loss > 0


@pytest.fixture
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_report, "_LONG_CALL_S", 0.1)
    monkeypatch.setattr(progress_report, "_LOOK_EVERY_S", 0.05)


@pytest.mark.parametrize("loop", [1, 2])
def test_a_step_that_waits_for_its_input_says_so(
    make: Make, file: ProgressFile, quick_looks: None, loop: int
) -> None:
    come = threading.Event()
    waiting: list[bool] = []

    def examples() -> Iterator[Any]:
        one = {"x": np.ones([1, 2], np.float32)}, np.ones([1, 3], np.float32)
        for _ in range(3):
            yield one
        come.wait()
        while True:
            yield one

    def input_fn() -> Any:
        spec = ({"x": tf.TensorSpec([1, 2])}, tf.TensorSpec([1, 3]))
        return tf.data.Dataset.from_generator(examples, output_signature=spec)

    def watch() -> None:
        def is_waiting() -> bool:
            progress = file.read()
            return progress is not None and progress.waits_for_input

        waiting.append(wait_until(is_waiting, 20.0))
        waiting.append(bool(getattr(file.read(), "in_step", False)))
        come.set()

    watcher = threading.Thread(target=watch)
    watcher.start()
    device = {"iterations_per_loop": loop}
    make(device=device).train(input_fn, steps=6)
    watcher.join()
    assert waiting == [True, True]
    assert not _read(file).waits_for_input


def test_a_step_that_takes_long_for_another_reason_does_not_blame_the_input(
    tmp_path: Path, file: ProgressFile, quick_looks: None
) -> None:
    seen: list[bool] = []

    def compute() -> np.ndarray[Any, Any]:  # stands for other workers
        time.sleep(0.6)  # Long enough for several looks at the call.
        seen.append(_read(file).waits_for_input)
        return np.float32(1.0)

    def model_fn(features: Any, mode: str) -> tfe.EstimatorSpec:
        with tf.control_dependencies([features]):
            loss = tf.numpy_function(compute, [], tf.float32)
        loss.set_shape([])
        return tfe.EstimatorSpec(mode, loss=loss, train_op=loss.op)

    def input_fn() -> Any:
        return tf.data.Dataset.from_tensors(tf.ones([1, 2])).repeat()

    tfe.Estimator(model_fn, tmp_path).train(input_fn, steps=2)
    assert seen == [False, False]
