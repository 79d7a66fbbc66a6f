"""A checkpoint is written as a whole, or not at all."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

import tfdist.estimator as tfe
from tfdist.estimator.checkpoints.input_progress import InputProgress
from tfdist.estimator.checkpoints.recovery import recover
from tfdist.estimator.checkpoints.writer import CheckpointWriter, write_whole_checkpoints
from tfdist.strategies.saving.checkpoint_files import damage


class Training:
    """A session whose "weights" [1000] are as many as the step, and a saver."""

    def __init__(self, folder: Path, saver: Any = None, **options: Any) -> None:
        self.folder = folder
        self.weights = v1.get_variable("weights", [1000], initializer=v1.zeros_initializer())
        self.step = v1.train.create_global_step()
        self.saver = saver or v1.train.Saver(**options)
        self.writer = CheckpointWriter(lambda: self.saver)
        self.session = v1.Session()
        self.session.run(v1.global_variables_initializer())

    def save(self, step: int, writer: Any = None) -> str:
        self.step.load(step, self.session)
        self.weights.load([step] * 1000, self.session)
        path = str(self.folder / "model.ckpt")
        return str((writer or self.writer).save(self.session, path, global_step=step))


@pytest.fixture
def make(graph: tf.Graph, tmp_path: Path) -> Iterator[Any]:
    made = []

    def make(saver: Any = None, folder: str = "", **options: Any) -> Training:
        made.append(Training(tmp_path / folder, saver, **options))
        return made[-1]

    yield make
    for one in made:
        one.session.close()


def files_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_to_keep": 2},
        {"max_to_keep": 1},
        {"max_to_keep": None},
        {"max_to_keep": 2, "keep_checkpoint_every_n_hours": 1e-9},
        {"sharded": True, "pad_step_number": True},
        {"write_version": v1.train.SaverDef.V1},
    ],
)
def test_it_leaves_what_tensorflows_saver_leaves(make: Any, tmp_path: Path, options: Any) -> None:
    for name in ("ours", "theirs"):
        (tmp_path / name).mkdir()
    with tf.Graph().as_default():
        ours = make(folder="ours", save_relative_paths=True, **options)
        paths = [ours.save(step) for step in range(4)]
    with tf.Graph().as_default():
        theirs = make(folder="theirs", save_relative_paths=True, **options)
        expected = [theirs.save(step, theirs.saver) for step in range(4)]
    assert [path.replace("/ours/", "/theirs/") for path in paths] == expected
    assert files_in(tmp_path / "ours") == files_in(tmp_path / "theirs")
    state = "checkpoint"
    assert (tmp_path / "ours" / state).read_text() == (tmp_path / "theirs" / state).read_text()
    assert damage(paths[-1]) is None
    assert tf.train.load_variable(paths[-1], "weights").tolist() == [3] * 1000


def test_a_graph_that_was_saved_beside_it_restores_it(make: Any, tmp_path: Path) -> None:
    path = make().save(5)
    with tf.Graph().as_default(), v1.Session() as session:
        v1.train.import_meta_graph(f"{path}.meta").restore(session, path)
        assert session.run(v1.train.get_global_step()) == 5


def test_names_in_the_file_checkpoint_are_relative(make: Any, tmp_path: Path) -> None:
    first, second = make(save_relative_paths=False), tmp_path / "moved"
    first.save(1)
    shutil.copytree(tmp_path, second)
    assert tf.train.latest_checkpoint(str(second)) == f"{second}/model.ckpt-1"


class _PowerCut(BaseException):
    """Ends a process at once: nothing is cleaned up."""


def test_a_power_cut_at_any_moment_leaves_a_whole_checkpoint(
    make: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    training = make(max_to_keep=1)
    training.save(1)
    start = tmp_path / "start"
    shutil.copytree(tmp_path, start)
    calls, cut_at = 0, 0

    def watch(name: str) -> None:
        real = getattr(os, name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == cut_at:
                monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)
                raise _PowerCut
            return real(*args, **kwargs)

        monkeypatch.setattr(os, name, watched)

    for name in ("fsync", "replace", "makedirs"):
        watch(name)
    seen = set()
    for cut_at in range(1, 40):
        training.folder = tmp_path / str(cut_at)
        calls = cut_at
        shutil.copytree(start, training.folder)
        training.saver.set_last_checkpoints_with_time([(f"{training.folder}/model.ckpt-1", 0.0)])
        calls = 0
        real_remove = shutil.rmtree
        try:
            training.save(2)
        except _PowerCut:
            monkeypatch.setattr(shutil, "rmtree", real_remove)
        else:
            break
        path = recover(str(training.folder))
        assert path is not None and damage(path) is None
        step = tf.train.load_variable(path, "global_step")
        assert tf.train.load_variable(path, "weights").tolist() == [step] * 1000
        assert not [name for name in files_in(training.folder) if "saving" in name]
        seen.add(int(step))
    assert cut_at > 8 and seen == {1, 2}


def test_all_is_on_the_disk_before_it_has_its_name_and_named_before_others_are_deleted(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = make(max_to_keep=1)
    training.save(1)
    events: list[str] = []
    real_sync, real_replace = os.fsync, os.replace

    def name_of(path: str) -> str:
        return os.path.relpath(path, training.folder)

    def sync(number: int) -> None:
        events.append(f"sync {name_of(os.readlink(f'/proc/self/fd/{number}'))}")
        assert (training.folder / "model.ckpt-1.index").exists()
        real_sync(number)

    def replace(source: str, target: str) -> None:
        events.append(f"name {name_of(target)}")
        real_replace(source, target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", replace)
    training.save(2)
    data, index, meta = (f"model.ckpt-2.{e}" for e in ("data-00000-of-00001", "index", "meta"))
    first_name = events.index(f"name {data}")
    assert {f"sync .saving/{name}" for name in (data, index, meta)} == set(events[:first_name])
    names = [f"name {data}", f"name {meta}", f"name {index}", "sync ."]
    assert events[first_name:] == [
        *names, "sync .saving/checkpoint", "name checkpoint", "sync ."
    ]  # fmt: skip
    assert not (training.folder / "model.ckpt-1.index").exists()


def test_what_an_ended_process_left_is_removed(make: Any, tmp_path: Path) -> None:
    (tmp_path / ".saving" / "model.ckpt-3_temp").mkdir(parents=True)
    make().save(4)
    assert not (tmp_path / ".saving").exists()


def test_an_error_of_the_saver_leaves_nothing_behind(make: Any, tmp_path: Path) -> None:
    training = make()
    training.save(1)
    before = files_in(tmp_path)
    training.session.run(training.weights.initializer)
    with tf.Graph().as_default(), v1.Session(graph=training.session.graph) as other:
        training.session = other
        with pytest.raises(tf.errors.FailedPreconditionError):  # Its variables have no values.
            training.writer.save(other, str(tmp_path / "model.ckpt"), global_step=2)
    assert files_in(tmp_path) == before


def test_a_saver_of_another_class_is_called_as_it_is(make: Any, tmp_path: Path) -> None:
    class Own(v1.train.Saver):  # type: ignore[misc,name-defined]
        def save(self, sess: Any, save_path: str, *args: Any, **options: Any) -> Any:
            options["latest_filename"] = "own_state"
            return super().save(sess, save_path, *args[:1], **options)

    v1.get_variable("one", initializer=1.0)
    training = make(Own())
    training.save(1)
    assert (tmp_path / "own_state").exists() and not (tmp_path / "checkpoint").exists()


@pytest.mark.parametrize("kind", ["saver", "scaffold", "collection"])
def test_a_hook_of_the_users_writes_whole_checkpoints(
    dense: Any, numbers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    synced = []
    real_sync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda number: synced.append(number) or real_sync(number))
    plain = dense()

    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        spec = plain(features, labels, mode)
        saver = v1.train.Saver(max_to_keep=2)
        scaffold = v1.train.Scaffold(saver=saver)
        what: dict[str, Any] = {"saver": {"saver": saver}, "scaffold": {"scaffold": scaffold}}
        if kind == "collection":
            v1.add_to_collection(v1.GraphKeys.SAVERS, saver)
        hook = v1.train.CheckpointSaverHook(str(tmp_path), save_steps=2, **what.get(kind, {}))
        return spec._replace(scaffold=scaffold, training_hooks=[hook])

    tfe.Estimator(model_fn, tmp_path).train(numbers(), steps=6)
    assert synced
    names = sorted(path.name for path in tmp_path.glob("*.index"))
    assert names == ["model.ckpt-4.index", "model.ckpt-6.index"]


def test_a_hook_is_changed_once(graph: tf.Graph) -> None:
    hook = v1.train.CheckpointSaverHook("model", save_steps=1)
    write_whole_checkpoints(hook, InputProgress(None), None)
    writer = hook._saver
    write_whole_checkpoints(hook, InputProgress(None), None)
    assert hook._saver is writer
