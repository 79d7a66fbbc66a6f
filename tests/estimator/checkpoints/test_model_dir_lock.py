"""One chief at a time trains in a model_dir: its lock, and who may take it over."""

import dataclasses
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import tensorflow as tf
from brief_training import Steps

import tfdist.estimator as tfe
from tfdist.estimator.checkpoints import model_dir_lock
from tfdist.estimator.checkpoints.model_dir_lock import (
    FILE_NAME,
    Holder,
    ModelDirInUseError,
    locked,
)
from tfdist.process.identity import own_place, started_s
from tfdist.testing.run import wait_until

ELSEWHERE = "another boot pid:[1]"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beats and limits in a hundredth of their time."""
    monkeypatch.setattr(model_dir_lock, "BEAT_S", 0.05)
    monkeypatch.setattr(model_dir_lock, "SILENCE_S", 0.6)
    monkeypatch.setattr(model_dir_lock, "_LOOK_EVERY_S", 0.02)
    monkeypatch.setattr(model_dir_lock, "_SETTLE_S", 0.05)


@pytest.fixture
def child() -> Iterator["subprocess.Popen[bytes]"]:
    """A process of this machine that runs."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def leave_lock(folder: Path | str, pid: int, **changes: Any) -> Holder:
    """Writes the lock that a process of this place, or of the one named, would have written."""
    start_s = started_s(pid) or 0.0
    holder = Holder(
        host="vm7", pid=pid, place=own_place(), started_s=start_s, since="noon", token="t"
    )
    holder = dataclasses.replace(holder, **changes)
    write_lock(folder, holder)
    return holder


def write_lock(folder: Path | str, holder: Holder, beats: int = 0) -> None:
    new = Path(folder, f"{FILE_NAME}.new")
    new.write_text(json.dumps({**dataclasses.asdict(holder), "beats": beats}))
    new.replace(Path(folder, FILE_NAME))


def lock_in(folder: Path) -> Any:
    return json.loads((folder / FILE_NAME).read_text())


def refused(folder: Path | str, match: str | None = None) -> str:
    """Tries to train there, and returns the message of the refusal."""
    with pytest.raises(ModelDirInUseError, match=match) as caught, locked(str(folder)):
        pass
    assert caught.value.exit_code == 2
    return str(caught.value)


def taken_over(logged: list[str]) -> list[str]:
    return [line for line in logged if "is taken over" in line]


# Holding it.


def test_the_lock_says_who_trains_and_is_gone_after_the_training(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), locked(str(tmp_path)):
        said = lock_in(tmp_path)
        assert said["pid"] == os.getpid()
        assert said["host"] == os.uname().nodename
        assert said["since"].startswith(time.strftime("%Y-"))
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_the_lock_is_written_anew_all_the_time(tmp_path: Path) -> None:
    with locked(str(tmp_path)):
        texts = set()
        give_up_s = time.monotonic() + 20
        while len(texts) < 3 and time.monotonic() < give_up_s:
            texts.add((tmp_path / FILE_NAME).read_text())
            time.sleep(0.01)
    assert len(texts) >= 3
    assert len({len(text) for text in texts}) == 1  # In place: none was cut off.


@pytest.mark.processes
def test_a_fork_of_the_process_leaves_the_lock_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_dir_lock, "BEAT_S", 60.0)  # Else it is written again.
    try:
        with locked(str(tmp_path)):
            pid = os.fork()
            if pid == 0:
                raise EOFError  # Leaves the `with` block, and then the process.
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
            assert (tmp_path / FILE_NAME).exists()
    except EOFError:
        os._exit(7)


def test_a_removed_lock_is_written_again(tmp_path: Path) -> None:
    with locked(str(tmp_path)):
        (tmp_path / FILE_NAME).unlink()
        file = tmp_path / FILE_NAME
        assert wait_until(lambda: file.exists() and file.read_text() != "", 20)
        assert json.loads(file.read_text())["pid"] == os.getpid()


# A process of this machine.


@pytest.mark.processes
def test_a_lock_that_is_still_empty_is_read_again(
    tmp_path: Path, child: Any, logged: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / FILE_NAME).touch()
    monkeypatch.setattr(time, "sleep", lambda _: leave_lock(tmp_path, child.pid))
    refused(tmp_path, "since noon")
    assert logged == []  # Nothing was watched.


@pytest.mark.processes
def test_a_second_training_is_refused_at_once_while_the_first_one_runs(
    tmp_path: Path, child: Any
) -> None:
    leave_lock(tmp_path, child.pid)
    began_s = time.monotonic()
    assert refused(tmp_path) == (
        f"process {child.pid} on vm7 has been training in model_dir {str(tmp_path)!r} since noon. "
        "A second training would overwrite its checkpoints: stop it, or choose another model_dir."
    )
    assert time.monotonic() - began_s < model_dir_lock.SILENCE_S
    assert lock_in(tmp_path)["pid"] == child.pid


def ended(process: "subprocess.Popen[bytes]", folder: Path) -> None:
    """Leaves the lock of a process that is gone."""
    holder = leave_lock(folder, process.pid)
    process.kill()
    process.wait()
    assert not psutil.pid_exists(holder.pid)


def zombie(process: "subprocess.Popen[bytes]", folder: Path) -> None:
    """Leaves the lock of a process that has ended, and for which no process has waited."""
    leave_lock(folder, process.pid)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


def number_given_again(process: "subprocess.Popen[bytes]", folder: Path) -> None:
    """Leaves the lock of an earlier process with the number of one that runs."""
    leave_lock(folder, process.pid, started_s=1.0)


@pytest.mark.processes
@pytest.mark.parametrize("leave", [ended, zombie, number_given_again])
def test_the_lock_of_a_process_that_has_ended_is_taken_over_at_once_and_said(
    tmp_path: Path, child: Any, logged: list[str], leave: Callable[..., None]
) -> None:
    leave(child, tmp_path)
    with locked(str(tmp_path)):
        assert lock_in(tmp_path)["pid"] == os.getpid()
    assert logged == [
        f"The lock of model_dir {str(tmp_path)!r} is taken over from process {child.pid} on vm7, "
        "which trained there since noon and has ended."
    ]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.processes
def test_of_many_who_take_it_over_one_gets_it(tmp_path: Path, child: Any) -> None:
    ended(child, tmp_path)
    held: list[model_dir_lock._Lock] = []
    messages: list[str] = []
    together = threading.Barrier(8)

    def try_it() -> None:
        lock = model_dir_lock._Lock(str(tmp_path))
        together.wait(20)
        try:
            lock.acquire()
            held.append(lock)
        except ModelDirInUseError as error:
            messages.append(str(error))

    threads = [threading.Thread(target=try_it) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(held), len(messages)) == (1, 7)
    held[0].release()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.processes
def test_who_comes_too_late_to_take_it_over_does_not(tmp_path: Path, child: Any) -> None:
    ended(child, tmp_path)
    seen = (tmp_path / FILE_NAME).read_text()
    with locked(str(tmp_path)):
        taken = (tmp_path / FILE_NAME).read_text()
        assert not model_dir_lock._Lock(str(tmp_path))._replace(seen)
        assert json.loads(taken)["token"] in (tmp_path / FILE_NAME).read_text()


# A process somewhere else: another machine, or another container.


@pytest.mark.processes
def test_a_process_elsewhere_that_is_silent_loses_its_lock(
    tmp_path: Path, child: Any, logged: list[str]
) -> None:
    # Its number is that of a process which runs here: that says nothing.
    leave_lock(tmp_path, child.pid, place=ELSEWHERE)
    began_s = time.monotonic()
    with locked(str(tmp_path)):
        assert time.monotonic() - began_s >= model_dir_lock.SILENCE_S
    waits, takes = logged
    assert f"is locked by process {child.pid} on vm7 since noon: waiting" in waits
    assert "since noon and has not written its lock for" in takes


@pytest.mark.parametrize(("run", "start"), [("r1", 1), ("r1", 2), ("r2", 1), ("", 1)])
def test_a_process_elsewhere_loses_its_lock_at_once_to_a_later_start_of_its_run(
    tmp_path: Path, logged: list[str], monkeypatch: pytest.MonkeyPatch, run: str, start: int
) -> None:
    monkeypatch.setenv("TFDIST_RUN", "r1")
    monkeypatch.setenv("TFDIST_RESTART_COUNT", "2")
    leave_lock(tmp_path, 4711, place=ELSEWHERE, run=run, start=start)
    with locked(str(tmp_path)):
        own = lock_in(tmp_path)
    assert (own["run"], own["start"]) == ("r1", 2)
    is_earlier = (run, start) == ("r1", 1)
    assert [": waiting" in line for line in logged] == ([False] if is_earlier else [True, False])


@pytest.fixture
def beating(tmp_path: Path) -> Iterator[threading.Event]:
    """A process elsewhere that trains until the event is set; then it removes its lock."""
    is_over = threading.Event()
    holder = leave_lock(tmp_path, 4711, place=ELSEWHERE)

    def beat() -> None:
        number = 0
        while not is_over.wait(model_dir_lock.BEAT_S):
            number += 1
            write_lock(tmp_path, holder, number)
        (tmp_path / FILE_NAME).unlink()

    thread = threading.Thread(target=beat)
    thread.start()
    yield is_over
    is_over.set()
    thread.join()


@pytest.mark.usefixtures("beating")
def test_a_process_elsewhere_that_writes_its_lock_is_left_alone(tmp_path: Path) -> None:
    refused(tmp_path, "process 4711 on vm7 has been training")
    assert lock_in(tmp_path)["pid"] == 4711


def test_a_process_elsewhere_may_end_meanwhile(
    tmp_path: Path, beating: threading.Event, logged: list[str]
) -> None:
    threading.Timer(0.2, beating.set).start()
    with locked(str(tmp_path)):
        pass
    assert not taken_over(logged)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": "x"}'])
def test_a_lock_that_cannot_be_read_is_taken_over_when_nobody_writes_it(
    tmp_path: Path, logged: list[str], text: str
) -> None:
    (tmp_path / FILE_NAME).write_text(text)
    with locked(str(tmp_path)):
        pass
    [line] = taken_over(logged)
    assert "from an unknown process, which trained there since an unknown time" in line


# Paths that only TensorFlow reaches.


def test_a_remote_model_dir_is_locked_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = f"file://{tmp_path}/model"
    for _ in range(2):
        with locked(folder):
            time.sleep(3 * model_dir_lock.BEAT_S)
            refused(folder, f"process {os.getpid()} on")
            assert [path.name for path in Path("model").iterdir()] == [FILE_NAME]
        assert list(Path("model").iterdir()) == []
    assert list(tmp_path.iterdir()) == [tmp_path / "model"]  # No folder named "file:".


def test_of_two_who_write_a_remote_lock_at_once_the_later_one_gets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = f"file://{tmp_path}"
    monkeypatch.setattr(tf.io.gfile, "exists", lambda path: False)  # Both have looked before.
    earlier, later = (model_dir_lock._Lock(folder) for _ in range(2))

    def later_writes(seconds: float) -> None:
        monkeypatch.undo()
        later._write()

    monkeypatch.setattr(model_dir_lock.time, "sleep", later_writes)
    assert [earlier._create(), later._is_settled()] == [False, True]


# Trainings.


def test_each_training_has_the_lock_and_leaves_none(
    tmp_path: Path, dense: Any, numbers: Any
) -> None:
    seen: set[bool] = set()
    hook = Steps(lambda *_: seen.add((tmp_path / FILE_NAME).exists()))
    estimator = tfe.Estimator(dense(), tmp_path)
    for _ in range(2):
        estimator.train(numbers(), hooks=[hook], steps=2)
        assert not (tmp_path / FILE_NAME).exists()
    spec = tfe.TrainSpec(numbers(), max_steps=8, hooks=[hook])
    tfe.train_and_evaluate(estimator, spec, tfe.EvalSpec(numbers(), steps=1, throttle_secs=0))
    assert seen == {True}
    assert not (tmp_path / FILE_NAME).exists()


@pytest.mark.processes
def test_a_second_training_changes_nothing_in_the_model_dir_and_others_need_no_lock(
    tmp_path: Path, dense: Any, numbers: Any, child: Any
) -> None:
    estimator = tfe.Estimator(dense(), tmp_path).train(numbers(), steps=1)
    leave_lock(tmp_path, child.pid)
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(ModelDirInUseError):
        estimator.train(numbers(), steps=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    estimator.evaluate(numbers(), steps=1)
    next(estimator.predict(numbers(batches=1)))
    assert (tmp_path / FILE_NAME).exists()


@pytest.mark.processes
@pytest.mark.parametrize(
    "config",
    [
        lambda: tfe.RunConfig(save_checkpoints_steps=None, save_checkpoints_secs=None),
        lambda: type("Second", (tfe.RunConfig,), {"is_chief": False})(),
    ],
    ids=["saves nothing", "no chief"],
)
def test_who_does_not_save_needs_no_lock(
    tmp_path: Path, dense: Any, numbers: Any, child: Any, config: Any
) -> None:
    leave_lock(tmp_path, child.pid)
    tfe.Estimator(dense(), tmp_path, config()).train(numbers(), steps=1)
    assert lock_in(tmp_path)["pid"] == child.pid


def test_a_training_whose_lock_was_taken_over_saves_no_more_and_fails(
    tmp_path: Path, dense: Any, numbers: Any, saved_steps: Any
) -> None:
    take_over = Steps(lambda *_: leave_lock(tmp_path, 4711, place=ELSEWHERE))
    with pytest.raises(ModelDirInUseError) as caught:
        tfe.Estimator(dense(), tmp_path).train(numbers(), hooks=[take_over], steps=3)
    assert "process 4711 on vm7 has taken model_dir" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert saved_steps(tmp_path) == [0]
    assert lock_in(tmp_path)["pid"] == 4711
