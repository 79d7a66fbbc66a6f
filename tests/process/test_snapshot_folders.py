"""Folders of snapshots: who may use one, and when one is removed."""

import os
from pathlib import Path

import pytest

from tfdist.process import snapshot_folders as folders
from tfdist.process.identity import started_s

DAY_S = 24 * 3600
NO_PROCESS = 1 << 30  # The kernel gives no such number.


@pytest.fixture(autouse=True)
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in place of /dev/shm."""
    monkeypatch.setattr(folders, "MEMORY", tmp_path)
    return tmp_path


def launched_by(pid: int, start_s: float, place: str | None = None) -> str:
    """Returns the name of a run of another launcher, which has a snapshot."""
    own = folders.new_run()
    run = f"{place or own.partition('-')[0]}-{pid}-{round(start_s)}-01234567"
    (folders.make_folder(run, "model") / "model.ckpt-5.index").touch()
    return run


def test_the_end_of_a_training_leaves_the_snapshots_of_another_one(memory: Path) -> None:
    run = folders.new_run()
    first, second = (folders.make_folder(run, name) for name in ("first", "second"))
    assert folders.folder_of_run(run).stat().st_mode & 0o077 == 0  # For its user alone.
    (first / "model.ckpt-5.index").touch()
    folders.remove_folder(first)
    assert second.exists() and not first.exists()
    folders.remove_folder(second)
    assert not list(memory.iterdir())


def test_the_end_of_a_run_removes_its_snapshots_and_no_others() -> None:
    run, other = folders.new_run(), folders.new_run()
    for one in (run, other):
        folders.make_folder(one, "model")
    folders.remove_run(run)
    folders.remove_run(run)
    assert not folders.folder_of_run(run).exists() and folders.folder_of_run(other).exists()


def test_snapshots_of_a_launcher_that_was_killed_are_removed_at_the_next_start() -> None:
    own = folders.new_run()
    folders.make_folder(own, "model")
    begin_s = started_s(os.getpid()) or 0.0
    other = launched_by(os.getpid(), begin_s)
    ended = [launched_by(NO_PROCESS, 100.0), launched_by(os.getpid(), begin_s - 60.0)]
    folders.remove_stale()
    assert not any(folders.folder_of_run(run).exists() for run in ended)
    assert folders.folder_of_run(own).exists() and folders.folder_of_run(other).exists()


def test_snapshots_of_a_launcher_elsewhere_are_kept_for_a_day() -> None:
    run = launched_by(1, 1.0, place="0123456789abcdef")
    folders.remove_stale()
    assert folders.folder_of_run(run).exists()
    for path in (folders.folder_of_run(run), *folders.folder_of_run(run).rglob("*")):
        os.utime(path, (0, path.stat().st_mtime - 1.1 * DAY_S))
    folders.remove_stale()
    assert not folders.folder_of_run(run).exists()


def test_other_files_and_links_are_left_alone(memory: Path) -> None:
    run = f"{folders.new_run().partition('-')[0]}-1-1-01234567"
    (memory / "target").mkdir()
    folders.folder_of_run(run).symlink_to(memory / "target")
    (memory / "tfdist-snapshots-mine").mkdir()
    with pytest.raises(PermissionError, match="another user's"):
        folders.make_folder(run, "model")
    folders.remove_stale()
    folders.remove_run(run)
    assert {path.name for path in memory.iterdir()} == {
        "target",
        "tfdist-snapshots-mine",
        folders.folder_of_run(run).name,
    }


def test_a_model_dir_has_one_name_however_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert folders.name_for("model/") == folders.name_for(f"{tmp_path}/model")
    assert folders.name_for("model") != folders.name_for("model2")
    assert folders.name_for("gs://bucket/model") != folders.name_for(f"{tmp_path}/gs:/bucket/model")
