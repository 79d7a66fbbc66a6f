"""Snapshots of a training in one process: taken, used after an interruption, and removed."""

import errno
import os
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

import tfdist.estimator as tfe
from tfdist.process import snapshot_folders
from tfdist.process.snapshot_folders import folder_of_host, name_for
from tfdist.strategies.saving import snapshots

STEPS, EVERY, KILLED = 20, 3, 11

Run = Callable[..., int]
Names = Callable[[], list[str]]


class Interruption(Exception):
    """Ends a training in the middle of it, as a kill does."""


class Watch(v1.train.SessionRunHook):  # type: ignore[misc,name-defined]
    """Notes the first step, and ends the training by an error after a step."""

    def __init__(self, last: int | None, each_step: Callable[[int], None]) -> None:
        self.last = last
        self.each_step = each_step

    def begin(self) -> None:
        self.global_step = v1.train.get_global_step()

    def after_create_session(self, session: Any, coord: Any) -> None:
        self.first = self.step = int(session.run(self.global_step))

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.step += 1
        self.each_step(self.step)
        if self.step == self.last:
            raise Interruption


def input_fn() -> tf.data.Dataset:
    return tf.data.Dataset.range(100).shuffle(100).repeat().batch(4)


def model_fn(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
    weight = v1.get_variable("weight", [3], initializer=v1.zeros_initializer())
    loss = tf.reduce_mean(tf.square(weight * tf.cast(features[0], tf.float32) / 100.0 - 1.0))
    train_op = v1.train.MomentumOptimizer(0.1, 0.9).minimize(loss, v1.train.get_global_step())
    return tfe.EstimatorSpec(mode, loss=loss, train_op=train_op)


@pytest.fixture(autouse=True)
def memory(snapshot_memory: Path) -> Path:
    return snapshot_memory


@pytest.fixture
def model_dir(tmp_path: Path) -> str:
    return str(tmp_path / "model")


@pytest.fixture
def here(model_dir: str) -> Names:
    """Returns the names of the snapshots that this host has."""

    def names() -> list[str]:
        folder = folder_of_host(os.environ["TFDIST_RUN"]) / name_for(model_dir)
        return sorted(path.stem for path in folder.glob("*.index"))

    return names


@pytest.fixture
def run(model_dir: str) -> Run:
    """Trains until it is interrupted after a step, or to the end; returns the first step."""

    def run(
        interrupted_after: int | None = None,
        each_step: Callable[[int], None] = lambda step: None,
        **settings: Any,
    ) -> int:
        watch = Watch(interrupted_after, each_step)
        settings = {"save_checkpoints_steps": 1000, "save_snapshot_steps": EVERY, **settings}
        estimator = tfe.Estimator(model_fn, model_dir, tfe.RunConfig(**settings))
        with pytest.raises(Interruption) if interrupted_after else nullcontext():
            estimator.train(input_fn, [watch], max_steps=STEPS)
        return watch.first

    return run


def test_a_training_goes_on_from_its_newest_snapshot_which_is_removed_at_the_end(
    run: Run, here: Names, memory: Path, logged: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(interrupted_after=KILLED) == 0
    assert here() == ["model.ckpt-9"]
    monkeypatch.setenv("TFDIST_RESTART_STEP", str(KILLED))
    assert run(interrupted_after=13) == 9
    assert "Going on from the snapshot of step 9 (2 steps again)." in logged
    assert any("Read 9 batch(es) again" in line for line in logged)
    assert here() == ["model.ckpt-12"]  # That of step 9 was deleted, though another process had it.
    assert run() == 12
    assert not list(memory.iterdir())


def _cut(folder: Path) -> None:
    path = next(folder.glob("*.data-*"))
    path.write_bytes(path.read_bytes()[:-1])


def _changed(folder: Path) -> None:
    path = next(folder.glob("*.data-*"))
    path.write_bytes(b"\1" + path.read_bytes()[1:])


def _of_another_step(folder: Path) -> None:
    for path in folder.glob("model.ckpt-9.*"):
        path.rename(folder / path.name.replace("-9.", "-99."))


def _without_position(folder: Path) -> None:
    (folder / "model.ckpt-9.input").unlink()


def _with_half_a_position(folder: Path) -> None:
    path = folder / "model.ckpt-9.input"
    path.write_text(path.read_text()[:-5])


def _half_written(folder: Path) -> None:
    (folder / ".saving").mkdir()
    for path in folder.glob("model.ckpt-9.*"):
        path.rename(folder / ".saving" / path.name)


def _of_another_model_dir(folder: Path) -> None:
    folder.rename(folder.parent / name_for("/another/model"))


def _of_another_run(folder: Path) -> None:
    of_run = folder.parent.parent
    of_run.rename(of_run.parent / f"tfdist-snapshots-{snapshot_folders.new_run()}")


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (_cut, "bytes"),
        (_changed, "cannot be read"),
        (_of_another_step, "it has the step 9"),
        (_without_position, ""),
        (_with_half_a_position, "its position cannot be read"),
        (_half_written, ""),
        (_of_another_model_dir, ""),
        (_of_another_run, ""),
    ],
)
def test_a_snapshot_that_is_not_whole_or_not_this_trainings_is_not_used(
    harm: Callable[[Path], None], words: str, run: Run, model_dir: str, logged: list[str]
) -> None:
    run(interrupted_after=KILLED)
    harm(folder_of_host(os.environ["TFDIST_RUN"]) / name_for(model_dir))
    assert run(interrupted_after=1) == 0
    assert words in "\n".join(logged)
    assert any("is not used" in line for line in logged) == bool(words)


def test_a_checkpoint_of_the_same_step_wins(run: Run, logged: list[str]) -> None:
    run(interrupted_after=KILLED, save_checkpoints_steps=9)
    assert run(interrupted_after=10) == 9
    assert not any("Going on from the snapshot" in line for line in logged)


def test_two_snapshots_are_there_at_most(run: Run, here: Names) -> None:
    numbers: list[int] = []
    run(each_step=lambda step: numbers.append(len(here())))
    assert 1 <= max(numbers) <= 2


def test_without_room_a_line_says_so_and_the_training_goes_on(
    run: Run, here: Names, monkeypatch: pytest.MonkeyPatch, logged: list[str]
) -> None:
    usage = shutil.disk_usage("/")._replace(free=63)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    run(interrupted_after=KILLED)
    said = [line for line in logged if "No snapshot is kept" in line]
    assert len(said) == 1 and "of step 3: " in said[0] and "64 bytes more are needed" in said[0]
    assert here() == []


def test_room_for_one_more_is_enough_where_one_is_there() -> None:
    assert snapshots.why_no_room(100, num_new=1, free=150) == ""
    assert "200 bytes more are needed" in snapshots.why_no_room(100, num_new=2, free=150)
    assert "where 0 are free" in snapshots.why_no_room(100, num_new=1, free=-5)


def test_a_failed_write_is_a_line_and_the_snapshot_before_it_stays(
    run: Run, here: Names, monkeypatch: pytest.MonkeyPatch, logged: list[str], memory: Path
) -> None:
    real_replace = os.replace

    def replace(source: str, target: str) -> None:
        if str(memory) in target and "-9." in target:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real_replace(source, target)

    monkeypatch.setattr(os, "replace", replace)
    run(interrupted_after=KILLED)
    words = "A snapshot could not be written: No space left on device"
    assert any(words in line for line in logged)
    assert here() == ["model.ckpt-6"]


def test_a_program_that_no_launcher_starts_again_keeps_none_and_says_so(
    run: Run, monkeypatch: pytest.MonkeyPatch, memory: Path, logged: list[str]
) -> None:
    monkeypatch.delenv("TFDIST_RUN")
    run(interrupted_after=4)
    assert any("No snapshots are kept in memory" in line for line in logged)
    assert not list(memory.iterdir())


def test_the_launchers_option_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tfe.RunConfig().save_snapshot_steps == 0
    monkeypatch.setenv("TFDIST_SNAPSHOT_STEPS", "7")
    assert tfe.RunConfig().save_snapshot_steps == 7
    assert tfe.RunConfig(save_snapshot_steps=0).save_snapshot_steps == 0
