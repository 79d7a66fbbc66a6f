"""Checkpoints are written beside the training; all readers see whole ones only."""

import errno
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1
from brief_training import Steps

import tfdist.estimator as tfe
from tfdist.estimator.checkpoints import background
from tfdist.estimator.checkpoints.background import BackgroundSaves, SaverOps, reads_files
from tfdist.estimator.checkpoints.recovery import recover
from tfdist.estimator.checkpoints.writer import CheckpointWriter
from tfdist.estimator.inputs.position import read_position
from tfdist.process.memory import total_and_free_bytes
from tfdist.process.progress_file import find_progress_file
from tfdist.strategies.saving import background_writes
from tfdist.strategies.saving.checkpoint_files import damage
from tfdist.strategies.stop_signals import StopSignals

Make = Callable[..., Any]


class Disk:
    """A disk that is slow as long as `is_free` is not set; saves wait in `fsync`.

    Attributes:
      is_free: Set when writes may go on.
      has_begun: Set when a write has begun.
      error: Raised by each write from then on.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_free, self.has_begun = threading.Event(), threading.Event()
        self.error: OSError | None = None
        real_sync = os.fsync

        def sync(number: int) -> None:
            assert self.is_free.is_set() or saving(), "the training waits for a write"
            self.has_begun.set()
            assert self.is_free.wait(60.0)
            if self.error is not None:
                raise self.error
            real_sync(number)

        monkeypatch.setattr(os, "fsync", sync)
        # A wait is logged at once, and frees the disk.
        monkeypatch.setattr(background_writes, "_SILENT_S", 0.0)
        real_info = v1.logging.info

        def info(message: str, *values: Any) -> None:
            real_info(message, *values)
            if message.startswith("Waiting until"):
                self.is_free.set()

        monkeypatch.setattr(v1.logging, "info", info)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk = Disk(monkeypatch)
    yield disk
    disk.is_free.set()


@pytest.fixture
def saves() -> Iterator[BackgroundSaves]:
    with BackgroundSaves(StopSignals()) as saves:
        yield saves


def saving() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "save"]


def write_ended() -> None:
    """Returns when no thread writes any more."""
    for thread in saving():
        thread.join(60.0)


# The files.


def plain() -> None:
    v1.get_variable("weights", [1000], initializer=v1.random_normal_initializer(seed=1))


def old_variables() -> None:
    v1.get_variable("weights", [1000], initializer=v1.ones_initializer(), use_resource=False)


def partitioned() -> None:
    v1.get_variable(
        "rows",
        [10, 7],
        initializer=v1.random_normal_initializer(seed=1),
        partitioner=v1.fixed_size_partitioner(3),
    )


def of_many_types() -> None:
    for dtype in (tf.bool, tf.uint8, tf.bfloat16, tf.half, tf.float64, tf.complex64, tf.int64):
        v1.get_variable(dtype.name, initializer=tf.cast([0, 1, 2], dtype), trainable=False)
    v1.get_variable("text", initializer=tf.constant([b"one", b""]), trainable=False)
    v1.get_variable("empty", initializer=tf.zeros([0, 4]))
    v1.get_variable("scalar", initializer=7.5)
    v1.get_variable("with_zero_byte", initializer=tf.constant(b"1\0"), trainable=False)


def on_two_devices() -> None:
    for place in ("CPU:0", "CPU:1"):
        with tf.device(place):
            v1.get_variable(f"on_{place[-1]}", [5], initializer=v1.ones_initializer())


def with_a_table() -> None:
    table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
    insert = table.insert(tf.constant(["a", "b"]), tf.constant([1, 2], tf.int64))
    v1.add_to_collection(v1.GraphKeys.TABLE_INITIALIZERS, insert)


@pytest.mark.parametrize("options", [{}, {"sharded": True, "pad_step_number": True}])
@pytest.mark.parametrize(
    "model", [plain, old_variables, partitioned, of_many_types, on_two_devices, with_a_table]
)
def test_the_files_equal_those_of_a_save_in_the_foreground(
    graph: tf.Graph, tmp_path: Path, saves: BackgroundSaves, model: Make, options: dict[str, Any]
) -> None:
    model()
    v1.train.create_global_step()
    saver = v1.train.Saver(max_to_keep=2, **options)
    is_known = SaverOps(saver, graph).are_known
    assert is_known
    contents = []
    with v1.Session(config=v1.ConfigProto(device_count={"CPU": 2})) as session:
        session.run([v1.global_variables_initializer(), v1.tables_initializer()])
        for folder, how in (("front", None), ("back", saves)):
            (tmp_path / folder).mkdir()
            saver.set_last_checkpoints_with_time([])
            writer = CheckpointWriter(lambda: saver, saves=how)
            for step in (1, 2, 3):
                writer.save(session, str(tmp_path / folder / "model.ckpt"), global_step=step)
            saves.wait()
            files = sorted((tmp_path / folder).rglob("*"))
            contents.append({file.name: file.read_bytes() for file in files})
    assert contents[0] == contents[1]
    assert sum(name.endswith(".index") for name in contents[0]) == 2


def test_the_values_are_those_of_the_save(
    graph: tf.Graph, tmp_path: Path, disk: Disk, saves: BackgroundSaves
) -> None:
    for_resource = v1.get_variable("new", [100_000], initializer=v1.zeros_initializer())
    old = v1.get_variable("old", [100_000], initializer=v1.zeros_initializer(), use_resource=False)
    step = tf.group(*(v1.assign_add(v, tf.ones_like(v)) for v in (for_resource, old)))
    saver = v1.train.Saver()
    writer = CheckpointWriter(lambda: saver, saves=saves)
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        session.run(step)
        # Before the thread has taken the values as well.
        real_save, may_save = background.save_values, threading.Event()

        def save_later(*arguments: Any) -> str:
            assert may_save.wait(60.0)
            return real_save(*arguments)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("tfdist.estimator.checkpoints.writer.save_values", save_later)
            assert writer.save(session, str(tmp_path / "model.ckpt"), global_step=1) is None
            for _ in range(3):
                session.run(step)
            may_save.set()
            saves.wait()
    for name in ("new", "old"):
        assert set(tf.train.load_variable(str(tmp_path), name)) == {1.0}


def test_a_saver_in_an_old_format_saves_in_the_foreground(
    graph: tf.Graph, tmp_path: Path, saves: BackgroundSaves, logged: list[str]
) -> None:
    plain()
    saver = v1.train.Saver(write_version=v1.train.SaverDef.V1)
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        for step in (1, 2):
            CheckpointWriter(lambda: saver, saves=saves).save(session, str(tmp_path / "m"), step)
    line = "Steps wait until a checkpoint is written: its saver has ops of its own."
    assert logged.count(line) == 1
    assert (tmp_path / "m-2").exists()


# Beside the training.


@pytest.fixture
def train(dense: Make, numbers: Make, tmp_path: Path) -> Make:
    """Trains in tmp_path, with a checkpoint after every second step."""

    def train(*hooks: Any, steps: int = 6, listeners: Any = None, **config: Any) -> tfe.Estimator:
        config = {"save_checkpoints_steps": 2, "save_summary_steps": None, **config}
        estimator = tfe.Estimator(dense(), tmp_path, tfe.RunConfig(**config))
        return estimator.train(numbers(), steps=steps, hooks=hooks, saving_listeners=listeners)

    return train


def test_steps_run_while_a_checkpoint_is_written_and_the_next_save_waits(
    train: Make, disk: Disk, tmp_path: Path, saved_steps: Make
) -> None:
    found: list[Any] = []

    def look(step: int, run: Any) -> None:
        if step == 1:
            assert disk.has_begun.wait(60.0)
            assert not disk.is_free.is_set()
        found.append((tf.train.latest_checkpoint(str(tmp_path)), saved_steps(tmp_path)))

    train(Steps(look), steps=2)
    # The save of step 2 waits for that of step 0, which frees the disk.
    assert found[0] == (None, [])
    assert saved_steps(tmp_path) == [0, 2]


def test_the_position_of_the_input_is_that_of_the_save(
    train: Make, disk: Disk, tmp_path: Path
) -> None:
    found: list[Any] = []

    def look(step: int, run: Any) -> None:
        if step == 1:  # That of step 0 is written; that of step 2 will wait.
            disk.is_free.set()
            write_ended()
            disk.is_free.clear()
        if step == 3:
            disk.is_free.set()
            write_ended()
            found.append(read_position(str(tmp_path / "model.ckpt-2")))

    train(Steps(look), steps=5)
    assert found[0].batches == 2


def test_the_launcher_knows_while_a_checkpoint_is_written(
    train: Make, disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TFDIST_PROGRESS_FILE", str(tmp_path / "progress"))
    found: list[bool] = []

    def look(step: int, run: Any) -> None:
        if step > 1:
            write_ended()
        progress = find_progress_file().read()  # type: ignore[union-attr]
        found.append(progress is not None and progress.is_writing)
        disk.is_free.set()
        write_ended()

    train(Steps(look), steps=3, save_checkpoints_steps=100)
    assert found == [True, False, False]


def test_the_end_of_the_training_waits_for_the_last_checkpoint(
    train: Make, disk: Disk, tmp_path: Path
) -> None:
    train(save_checkpoints_steps=100)
    path = tf.train.latest_checkpoint(str(tmp_path))
    assert path.endswith("model.ckpt-6") and damage(path) is None
    assert not (tmp_path / ".saving").exists()


@pytest.mark.parametrize("is_beside", [True, False])
def test_a_save_that_is_too_long_for_a_stop_is_reported(
    train: Make, monkeypatch: pytest.MonkeyPatch, logged: list[str], is_beside: bool
) -> None:
    monkeypatch.setenv("TFDIST_GRACE_S", "0")
    train(steps=4, save_checkpoints_async=is_beside)
    reports = [line for line in logged if "a stop by a signal may take 0 s" in line]
    assert len(reports) == 1
    assert reports[0].startswith("The checkpoint of step 0 took ")


def _raise(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize(
    ("act", "kind", "expected"),
    [
        (lambda *_: _raise(ValueError("of a hook")), ValueError, [0]),
        (lambda *_: _raise(KeyboardInterrupt()), KeyboardInterrupt, [0]),
        (lambda *_: os.kill(os.getpid(), signal.SIGTERM), SystemExit, [0, 1]),
    ],
    ids=["error", "interrupt", "signal"],
)
def test_an_error_or_a_stop_signal_waits_for_the_checkpoint_that_is_being_written(
    train: Make,
    disk: Disk,
    tmp_path: Path,
    saved_steps: Make,
    act: Callable[..., None],
    kind: type[BaseException],
    expected: list[int],
) -> None:
    with pytest.raises(kind):
        train(Steps(act), save_checkpoints_steps=100)
    assert saved_steps(tmp_path) == expected


def test_a_failed_write_ends_the_training_before_the_next_step(
    train: Make, disk: Disk, tmp_path: Path, saved_steps: Make
) -> None:
    disk.is_free.set()

    def break_disk(step: int, run: Any) -> None:
        if step == 1:
            write_ended()
            disk.error = OSError(errno.EIO, "Input/output error")
        if step == 2:  # The hook comes after the saver.
            write_ended()

    watch = Steps(break_disk)
    with pytest.raises(OSError, match="Input/output error"):
        train(watch)
    assert watch.steps == 2
    assert saved_steps(tmp_path) == [0] and not (tmp_path / ".saving").exists()


def test_a_failed_write_does_not_hide_the_error_that_ends_the_training(
    train: Make, disk: Disk, logged: list[str]
) -> None:
    disk.error = OSError(errno.EIO, "Input/output error")
    with pytest.raises(ValueError, match="of a hook"):
        train(Steps(lambda *_: _raise(ValueError("of a hook"))))
    lines = [line for line in logged if "could not be written" in line]
    assert lines == ["The checkpoint of step 0 could not be written: [Errno 5] Input/output error"]


_KILLED = """
import os, signal, sys
import tensorflow as tf, tensorflow.compat.v1 as v1
import tfdist.estimator as tfe

tf.get_logger().setLevel("INFO")
real, is_last = os.fsync, []

def sync(number):
    if is_last and ".data" in os.readlink(f"/proc/self/fd/{number}"):
        os.kill(os.getpid(), signal.SIGKILL)
    real(number)

os.fsync = sync

class Note(tfe.CheckpointSaverListener):
    def before_save(self, session, step):
        is_last[:] = [step] if step == 4 else []

def model_fn(features, mode):
    weights = v1.get_variable("weights", [1000], initializer=v1.zeros_initializer())
    loss = tf.reduce_sum(weights * features)
    step = v1.train.GradientDescentOptimizer(1.0).minimize(loss, v1.train.get_global_step())
    return tfe.EstimatorSpec(mode, loss=loss, train_op=step)

config = tfe.RunConfig(save_checkpoints_steps=2)
tfe.Estimator(model_fn, sys.argv[1], config).train(
    lambda: tf.data.Dataset.from_tensors(1.0).repeat(),
    max_steps=int(sys.argv[2]), saving_listeners=[Note()] if sys.argv[2] == "100" else [],
)
"""


@pytest.mark.processes
def test_after_a_kill_in_a_write_the_run_goes_on_from_the_checkpoint_before(
    tmp_path: Path, fake_cluster: Any
) -> None:
    program, model_dir = tmp_path / "program.py", tmp_path / "model"
    program.write_text(_KILLED)

    def run(steps: int) -> Any:
        command = [str(program), str(model_dir), str(steps)]
        [ended] = fake_cluster.run_script(command, engine="none", forked=True, check=False)
        return ended

    assert run(100).returncode == -signal.SIGKILL
    assert list((model_dir / ".saving").iterdir())
    newest = tf.train.latest_checkpoint(str(model_dir))
    assert newest.endswith("model.ckpt-2") and damage(newest) is None
    assert recover(str(model_dir)) == newest
    done = run(5)
    assert done.returncode == 0, done.stderr
    assert "Saving checkpoints for 2 into" in done.stderr
    assert tf.train.load_variable(str(model_dir), "weights").tolist() == [-5.0] * 1000


# Readers.


class Reader(v1.train.CheckpointSaverListener):  # type: ignore[misc]
    """Notes the newest checkpoint, if it is whole."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)
        self.seen: list[str | None] = []

    def look(self) -> None:
        path = tf.train.latest_checkpoint(self.folder)
        self.seen.append(path if path is None else Path(path).name)
        assert path is None or damage(path) is None


class AtEnd(Reader):
    def before_save(self, session: Any, global_step_value: int) -> None:
        self.look()

    def end(self, session: Any, global_step_value: int) -> None:
        self.look()


class AfterSave(Reader):
    def after_save(self, session: Any, global_step_value: int) -> None:
        self.look()


def test_a_listener_finds_the_files_of_the_last_save_before_the_next_and_at_the_end(
    train: Make, disk: Disk, tmp_path: Path
) -> None:
    listener = AtEnd(tmp_path)
    train(listeners=[listener], steps=3)
    assert listener.seen == [None, "model.ckpt-0", "model.ckpt-2", "model.ckpt-3"]


def test_a_listener_with_an_after_save_finds_the_files_there(
    train: Make, tmp_path: Path, logged: list[str]
) -> None:
    listener = AfterSave(tmp_path)
    assert reads_files(listener) and not reads_files(AtEnd(tmp_path))
    train(listeners=[listener], steps=3)
    assert listener.seen == ["model.ckpt-0", "model.ckpt-2", "model.ckpt-3"]
    line = "Steps wait until a checkpoint is written, as AfterSave may read its files."
    assert logged.count(line) == 1


def test_a_users_hook_saves_beside_the_training_but_not_one_of_a_class_of_its_own(
    train: Make, disk: Disk, tmp_path: Path, saved_steps: Make
) -> None:
    class Own(v1.train.CheckpointSaverHook):  # type: ignore[misc]
        def after_create_session(self, session: Any, coord: Any) -> None:
            super().after_create_session(session, coord)
            found.append(saved_steps(tmp_path))

    found: list[Any] = []
    train(v1.train.CheckpointSaverHook(str(tmp_path), save_steps=100), steps=1)
    assert saved_steps(tmp_path) == [0, 1]
    train(Own(str(tmp_path), save_steps=100), steps=1)  # The disk is free now.
    assert found == [[0, 1]]


def test_evaluations_between_steps_find_the_checkpoint(
    make: Make, numbers: Make, disk: Disk
) -> None:
    steps: list[int] = []

    class Exporter(tfe.Exporter):
        name = "note"

        def export(self, *, checkpoint_path: str, **_: Any) -> None:
            assert damage(checkpoint_path) is None
            steps.append(int(checkpoint_path.rsplit("-", 1)[1]))

    tfe.train_and_evaluate(
        make(save_checkpoints_steps=2),
        tfe.TrainSpec(numbers(), max_steps=4),
        tfe.EvalSpec(numbers(batches=1), exporters=Exporter(), throttle_secs=0, steps=1),
    )
    assert steps == [2, 4]


# Off, and too little memory.


def test_it_can_be_switched_off(train: Make, disk: Disk, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="the training waits for a write"):
        train(save_checkpoints_async=False)


def test_a_copy_that_does_not_fit_into_memory_is_not_made(
    train: Make, monkeypatch: Any, logged: list[str], tmp_path: Path, saved_steps: Make
) -> None:
    monkeypatch.setattr(background, "total_and_free_bytes", lambda: (1000, 80))
    monkeypatch.setattr(BackgroundSaves, "copy", None)
    train(steps=4)
    # Kernel [2, 3], bias [3], step: 44 bytes, once more while they are fetched.
    line = (
        "Steps wait until a checkpoint is written: a copy of its values needs 88 bytes of memory, "
        "where 80 are free."
    )
    assert logged.count(line) == 1
    assert saved_steps(tmp_path) == [0, 2, 4]


@pytest.mark.parametrize("version", [1, 2])
def test_memory_of_a_control_group_counts_without_its_cached_files(
    tmp_path: Path, version: int
) -> None:
    (tmp_path / "memory").mkdir()
    limit, used, cached = 4 << 20, 3 << 20, 2 << 20
    names = {
        1: ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
        2: ("memory.max", "memory.current", "memory.stat"),
    }[version]
    kind = "total_inactive_file" if version == 1 else "inactive_file"
    for name, text in zip(names, (limit, used, f"anon 7\n{kind} {cached}"), strict=True):
        (tmp_path / name).write_text(f"{text}\n")
    assert total_and_free_bytes(tmp_path) == (limit, limit - used + cached)
