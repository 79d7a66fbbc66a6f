"""Backups of `fit` that were damaged between two starts: found before training, never used.

In this process an interruption is an error that a callback raises, in front of a backup.
"""

import errno
import importlib
import json
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import interrupted_fit
import pytest
import tensorflow as tf
from interrupted_fit import INPUTS, undisturbed

from tfdist.strategies.divided.variable import DividedTableError
from tfdist.strategies.keras import backups
from tfdist.strategies.keras.backups import recover_backups
from tfdist.strategies.reductions.division import Division
from tfdist.strategies.saving.checkpoint_files import CheckpointDamagedError, ModelDirError
from tfdist.strategies.saving.disk_space import CheckpointSpaceError

Fit = partial[Any]


@pytest.fixture(params=["keras", "tf_keras"])
def fit(request: pytest.FixtureRequest) -> Fit:
    """Trains with a backup every third step, and returns the weights; or an error ends it."""
    return partial(interrupted_fit.fit, request.param, make_input=INPUTS["shuffled"])


@pytest.fixture
def folder(fit: Fit, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a backup of step 12, in the middle of the second epoch; that of step 9 before.

    Each library makes them once.
    """
    library = fit.args[0]
    if library not in _made:
        _made[library] = tmp_path_factory.mktemp("made")
        fit(_made[library], after=13)
    shutil.copytree(_made[library], tmp_path / "backup")
    return tmp_path / "backup" / ("chief" if library == "tf_keras" else "")


_made: dict[str, Path] = {}


def _weights(folder: Path) -> Path:
    data = list(folder.glob("*.data-*"))
    return data[0] if data else folder / "latest.weights.h5"


def _counter(folder: Path) -> Path:
    """The file that Keras reads beside the weights."""
    file = folder / "checkpoint"
    return file if file.exists() else folder / "training_metadata.json"


def _cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def _empty(file: Path) -> None:
    file.write_bytes(b"")


def _flip_a_bit(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) * 2 // 3] ^= 4
    file.write_bytes(data)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "cut": _cut,
    "empty": _empty,
    "a flipped bit": _flip_a_bit,
    "missing": Path.unlink,
}
FILES: dict[str, Callable[[Path], Path]] = {
    "weights": _weights,
    "counter": _counter,
    "position": lambda folder: folder / "input.json",
    "checksums": lambda folder: folder / "checksums.json",
}
SAID = {
    "cut": "bytes",
    "empty": "is empty",
    "a flipped bit": "has another checksum",
    "missing": "is missing",
}


def _backup(library: str, folder: Path) -> Any:
    callbacks = importlib.import_module(library).callbacks
    return callbacks.BackupAndRestore(str(folder.parent if library == "tf_keras" else folder))


def _content(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("file", FILES)
def test_the_backup_before_is_taken(
    fit: Fit, folder: Path, file: str, damage: str, capfd: pytest.CaptureFixture[str]
) -> None:
    library, path, before = fit.args[0], FILES[file](folder), _content(folder / "before")
    DAMAGES[damage](path)
    assert recover_backups([_backup(library, folder)]) == ""
    assert _content(folder) == before == _content(folder / "before")
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"The backup in {folder} is damaged: ")
    assert line.endswith("The one before is taken.")
    if (file, damage) not in (("checksums", "cut"), ("checksums", "a flipped bit")):
        assert f" {path.name} " in line
        assert SAID[damage] in line
    assert recover_backups([_backup(library, folder)]) == ""
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("damage", DAMAGES)
def test_training_ends_with_the_list_where_no_backup_is_whole(
    fit: Fit, folder: Path, damage: str
) -> None:
    for one in (folder, folder / "before"):
        DAMAGES[damage](_weights(one))
    everything = _content(folder), _content(folder / "before")
    problem = recover_backups([_backup(fit.args[0], folder)])
    assert problem.startswith(f"CheckpointDamagedError: No backup in {folder} is whole (")
    assert problem.count(SAID[damage]) == 2
    assert (_content(folder), _content(folder / "before")) == everything


def test_a_damaged_backup_changes_no_bit_of_the_weights_at_the_end(
    fit: Fit, folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    _flip_a_bit(_weights(folder))
    assert fit(tmp_path / "backup") == undisturbed(*fit.args)
    said = capfd.readouterr().err
    assert "has another checksum" in said
    assert "Going on in epoch 2 after 1 of its steps" in said
    assert not folder.exists()


def test_fit_refuses_to_train_where_no_backup_is_whole(
    fit: Fit, folder: Path, tmp_path: Path
) -> None:
    shutil.rmtree(folder / "before")
    _cut(_weights(folder))
    with pytest.raises(CheckpointDamagedError, match="or remove the folder to begin at epoch 1"):
        fit(tmp_path / "backup")


def test_a_full_disk_is_found_before_a_backup_is_written(
    fit: Fit, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(file: int, start: int, length: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    before = _content(folder)
    with pytest.raises(CheckpointSpaceError, match=r"the backup needs .* Older backups are as"):
        fit(tmp_path / "backup")
    assert _content(folder) == before


def test_fit_refuses_to_begin_where_no_backup_may_be_written(
    fit: Fit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *arguments: False)
    with pytest.raises(ModelDirError, match="cannot be written: there is no permission"):
        fit(tmp_path / "backup")


def test_a_backup_without_checksums_of_an_earlier_version_is_used(
    fit: Fit, folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its position had the one before as well."""
    (folder / "checksums.json").unlink()
    position = folder / "input.json"
    newer = {"epoch": 1, "steps": 7, "iterations": 15, "num_workers": 1}
    position.write_text(json.dumps([newer, *json.loads(position.read_text())]))
    shutil.rmtree(folder / "before")
    fit(tmp_path / "backup", after=4)  # Which makes a backup of step 15.
    assert "Going on in epoch 2 after 4 of its steps" in capfd.readouterr().err
    _cut(_weights(folder))
    assert fit(tmp_path / "backup") == undisturbed(*fit.args)
    assert "Going on in epoch 2 after 4 of its steps" in capfd.readouterr().err


def test_a_backup_without_a_position_is_said_to_have_none(
    fit: Fit, folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """As Keras alone writes it."""
    shutil.rmtree(folder / "before")
    for name in ("checksums.json", "input.json"):
        (folder / name).unlink()
    fit(tmp_path / "backup", after=1)
    assert f"the backup in {folder} has no position of the input" in capfd.readouterr().err


class KilledError(Exception):
    """Ends a save in the middle of it."""


@pytest.mark.parametrize("is_first", [False, True])
def test_a_save_that_is_not_finished_is_not_used(
    fit: Fit,
    tmp_path: Path,
    is_first: bool,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Killed when the weights are written, and the position is not."""
    backup = tmp_path / "backup"
    if not is_first:
        fit(backup, after=11)  # The last backup is that of step 9.
    with monkeypatch.context() as patch:
        patch.setattr(backups, "write_json", _be_killed)
        with pytest.raises(KilledError):
            fit(backup)
    capfd.readouterr()
    assert fit(backup) == undisturbed(*fit.args)
    said = capfd.readouterr().err
    assert "is not whole: its save was not finished." in said
    assert ("begins at its start" in said) == is_first
    assert ("Going on in epoch 2 after 1 of its steps" in said) != is_first


def _be_killed(*_: Any) -> None:
    raise KilledError


def test_a_backup_of_tf_keras_with_a_divided_table_is_refused_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Only several workers divide a table; then all of them are refused alike.
    division = Division(name="table", shape=(9, 2), dtype=tf.float32, num_workers=3, worker_index=0)
    monkeypatch.setattr(backups, "division_of", lambda variable: division)
    train = partial(interrupted_fit.fit, folder=tmp_path, make_input=INPUTS["shuffled"])
    with pytest.raises(
        DividedTableError, match="BackupAndRestore of tf_keras cannot restore table"
    ):
        train("tf_keras")
    assert not list(tmp_path.iterdir())
