"""Callbacks of workers that are not the chief write to a folder that is thrown away."""

import os
import tempfile
from pathlib import Path
from typing import Any

import keras
import pytest
import tf_keras

from tfdist.process.identity import owned_name
from tfdist.strategies.keras.callbacks import _folder, send_files_elsewhere


@pytest.mark.parametrize("library", [keras, tf_keras])
def test_only_paths_are_replaced(library: Any, tmp_path: Path) -> None:
    callbacks = library.callbacks
    board = callbacks.TensorBoard("epoch", update_freq="epoch")
    backup = callbacks.BackupAndRestore("e", save_freq="epoch")
    log = callbacks.CSVLogger(tmp_path / "log.csv")
    send_files_elsewhere(library, [board, backup, log])
    assert (board.update_freq, backup.save_freq) == ("epoch", "epoch")
    paths = board.log_dir, backup.backup_dir, log.filename
    assert [os.path.basename(path) for path in paths] == ["epoch", "e", "log.csv"]
    assert len({os.path.dirname(path) for path in paths}) == 1
    assert not any(Path(path).is_relative_to(tmp_path) for path in paths)


def test_paths_in_a_folder_go_with_it() -> None:
    backup = keras.callbacks.BackupAndRestore("some/backup/")
    send_files_elsewhere(keras, [backup])
    weights = Path(backup._weights_path)
    assert (weights.parent, weights.parent.name) == (Path(backup.backup_dir), "backup")


@pytest.mark.parametrize("is_launched", [True, False])
def test_the_folder_is_the_agents_and_those_of_killed_workers_are_removed(
    is_launched: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names are those of this process, of one that has ended, and of another program."""
    around = tmp_path / "around"
    around.mkdir()
    if is_launched:
        monkeypatch.setenv("TFDIST_PROGRESS_FILE", str(around / "progress"))
    else:
        monkeypatch.setattr(tempfile, "tempdir", str(around))
    ended, running = (around / f"tfdist_files-{name}" for name in (_name_of_ended(), owned_name()))
    other = around / "tfdist_files-of-others"
    for folder in (ended, running, other):
        folder.mkdir()
    _folder.cache_clear()
    try:
        made = _folder()
        assert set(around.iterdir()) == {made, running, other}
    finally:
        _folder.cache_clear()


def _name_of_ended() -> str:
    """The name of a process that had this one's number before."""
    place, pid, start_s, rest = owned_name().split("-")
    return "-".join([place, pid, str(int(start_s) - 100), rest])
