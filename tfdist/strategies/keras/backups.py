"""The backups of BackupAndRestore: the position of `fit` beside them, and their checksums.

    Keras 3   backup_dir/latest.weights.h5, training_metadata.json
    tf_keras  backup_dir/chief/checkpoint, ckpt-3.index, ckpt-3.data-00000-of-00001
    both      beside these: input.json, the position; checksums.json, of all of these files;
              before/, the backup before

Worker 0 alone writes and restores. Before it restores, it compares the checksums, and takes the
backup before if the newest is damaged. Keras removes all of this at the end of `fit`.

Private names: of Keras 3 `BackupAndRestore._save_model`, `_weights_path` and
`_training_metadata_path`; of tf_keras `BackupAndRestore._backup`.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from types import ModuleType
from typing import Any

import tensorflow as tf

from tfdist.process.endings import print_to_stderr
from tfdist.strategies.divided.variable import DividedTableError
from tfdist.strategies.keras.extension import extends, strategy_of
from tfdist.strategies.keras.fit import FitPosition, current_fit
from tfdist.strategies.keras.snapshots import state_of
from tfdist.strategies.keras.table_files import has_divided
from tfdist.strategies.reductions.division import division_of
from tfdist.strategies.saving.checked_files import begin_save, end_save, recover, write_json
from tfdist.strategies.saving.checkpoint_files import CheckpointDamagedError, ModelDirError
from tfdist.strategies.saving.disk_space import (
    bytes_of,
    full_disk_named,
    require_permission,
    require_room,
)

_POSITION = "input.json"


def backups_in(callbacks: Any, given: Sequence[Any]) -> list[Any]:
    """Returns the backups in a list; `callbacks` is the module of their Keras library."""
    return [one for one in given if isinstance(one, callbacks.BackupAndRestore)]


def adapt_backups(library: ModuleType, is_keras_3: bool) -> None:
    """Extends BackupAndRestore of a Keras library."""

    @extends(library.callbacks.BackupAndRestore, "_save_model" if is_keras_3 else "_backup")
    def save(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        run = current_fit()
        if run is None or getattr(self.model, "optimizer", None) is None:
            return original(self, *args, **kwargs)
        refuse_tables([self], self.model)
        run.synchronize_in_epoch()
        strategy = strategy_of(self.model)
        if strategy is not None and not strategy.extended.should_checkpoint:
            # To a folder that is thrown away: worker 0 gets the rows of divided tables.
            return original(self, *args, **kwargs) if has_divided(self.model) else None
        began_s = time.monotonic()
        folder, num_bytes = _folder(self), bytes_of(state_of(self.model))
        with full_disk_named(folder, "the backup", num_bytes, kind="backup"):
            tf.io.gfile.makedirs(folder)
            require_room(folder, num_bytes)
            begin_save(folder, _names(self))
            saved = original(self, *args, **kwargs)
            write_json(os.path.join(folder, _POSITION), [asdict(run.position)])
            end_save(folder, _names(self))
        run.stop_limit.note("backup", time.monotonic() - began_s)
        return saved


def recover_backups(backups: Sequence[Any]) -> str:
    """Puts the backups before in place of damaged ones, and says so.

    Returns:
      Why training cannot go on, for `refuse_backups`; "" if it can.
    """
    try:
        for backup in backups:
            line = recover(_folder(backup), _names(backup))
            if line is not None:
                print_to_stderr(line)
            require_permission(os.fspath(backup.backup_dir))
    except (CheckpointDamagedError, ModelDirError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def refuse_tables(backups: Sequence[Any], model: Any) -> None:
    """Raises an error if backups of tf_keras are to have divided tables: only Keras 3's can.

    Worker 0 restores them alone, and tf_keras does not tell which rows the others need.

    Raises:
      DividedTableError: On every worker.
    """
    if all(map(_is_of_keras_3, backups)):
        return
    for division in filter(None, map(division_of, model.variables)):
        raise DividedTableError(
            f"BackupAndRestore of tf_keras cannot restore {division.name}, which is divided "
            f"between {division.num_workers} workers. Use that of Keras 3, or save and restore a "
            "tf.train.Checkpoint on all workers, in a callback of your own."
        )


def refuse_backups(problem: str) -> None:
    """Raises the error that worker 0's `recover_backups` has returned; "" is none.

    Raises:
      CheckpointDamagedError: If there are backups, but none is whole.
      ModelDirError: If their folder cannot be read or written.
    """
    name, _, text = problem.partition(": ")
    for kind in (CheckpointDamagedError, ModelDirError):
        if kind.__name__ == name:
            raise kind(text)


def position_of_backup(backups: Sequence[Any], model: Any) -> FitPosition | None:
    """Returns the position of the backup that the model was restored from; None without one."""
    iterations = int(model.optimizer.iterations)
    found = [one for backup in backups for one in _read(_folder(backup))]
    position = next((one for one in found if one.iterations == iterations), None)
    folders = [folder for backup in backups if _names(backup) for folder in [_folder(backup)]]
    if position is None and folders:
        print_to_stderr(
            f"The epoch begins at its start: the backup in {folders[0]} has no position of the "
            "input."
        )
    return position


def _folder(backup: Any) -> str:
    """Returns the folder of a backup's files, which Keras removes at the end of `fit`."""
    folder = os.fspath(backup.backup_dir)
    return folder if _is_of_keras_3(backup) else os.path.join(folder, "chief")


def _names(backup: Any) -> list[str]:
    """Returns the files of a backup that exist, without its checksums."""
    folder = _folder(backup)
    if _is_of_keras_3(backup):
        paths = [backup._weights_path, backup._training_metadata_path]  # noqa: SLF001
    else:
        paths = [os.path.join(folder, "checkpoint")]
        with suppress(ValueError):  # That file is damaged.
            newest = tf.train.latest_checkpoint(folder)
            paths += [] if newest is None else tf.io.gfile.glob(f"{newest}.*")
    names = [*map(os.path.basename, paths), _POSITION]
    return [name for name in names if tf.io.gfile.exists(os.path.join(folder, name))]


def _is_of_keras_3(backup: Any) -> bool:
    return hasattr(backup, "_save_model")


def _read(folder: str) -> list[FitPosition]:
    """Returns the position in a folder; earlier versions kept the one before as well."""
    path = os.path.join(folder, _POSITION)
    if not tf.io.gfile.exists(path):
        return []
    try:
        with tf.io.gfile.GFile(path, "r") as file:
            return [FitPosition(**one) for one in json.loads(file.read())]
    except (tf.errors.OpError, ValueError, TypeError) as error:
        print_to_stderr(f"The epoch begins at its start: {path} cannot be read ({error}).")
        return []
