"""Callbacks of workers that are not the chief write to a folder that is thrown away."""

import os
from pathlib import Path
from typing import Any

import keras
import pytest
import tf_keras

from tfdist.strategies.keras.callbacks import send_files_elsewhere


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
