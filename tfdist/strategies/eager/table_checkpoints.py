"""Checkpoints of TensorFlow 2 with tables that are divided between the workers.

A `tf.train.Checkpoint`, by itself or in a CheckpointManager, has the whole table under one name, in
slices, as TensorFlow stores a partitioned variable. All workers must save together:

    worker 0                                      worker 1
    piece 1 as a file      <-- 32 MB ---------    its rows 0 to 130,000
    ...
    own values as a file                          reads what all combine, as worker 0 does
    merges the indexes
    is done                ------------------>    goes on

The others write nothing, also not the file `checkpoint`, and delete nothing in that folder. Each
worker restores by itself, and reads its own rows. So the folder is one that all see.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import tensorflow as tf

from tfdist.strategies.divided import pieces
from tfdist.strategies.divided.variable import DividedTableError, DividedVariable
from tfdist.strategies.eager.replica_variable import tf_variable
from tfdist.strategies.eager.run import needs_all_workers
from tfdist.strategies.placement import HOST
from tfdist.strategies.private_tensorflow import (
    ObjectSave,
    announce_object_saves,
    leave_checkpoints_alone,
)
from tfdist.strategies.reductions.division import Division, division_of
from tfdist.strategies.saving.disk_space import is_remote

# The folders in which worker 0 saves what this worker sends, on other workers.
_of_worker_0: set[str] = set()


@cache
def adapt_checkpoints() -> None:
    """Makes checkpoints of TensorFlow 2 save divided tables."""
    announce_object_saves(_save)
    leave_checkpoints_alone(lambda path: _folder(path) in _of_worker_0)


def refuse_remote(path: str, division: Division) -> None:
    """Raises a DividedTableError if a path to save to is on a remote file system."""
    if is_remote(path):
        raise DividedTableError(
            f"{path} is not in a folder of this machine, and {division.name} is divided between "
            f"{division.num_workers} workers: its slices are written as files and then merged. "
            "Save to a folder of this machine, and copy it."
        )


def _folder(path: str) -> str:
    return os.path.dirname(os.path.abspath(path))


def _save(save: ObjectSave) -> Any:
    tables = [(key, tf_variable(one)) for key, one in save.objects if division_of(one) is not None]
    if not tables:
        return save.write(save.path)
    refuse_remote(save.path, tables[0][1].division)
    with needs_all_workers("saving a divided table", lambda: f"saving {save.path}"):
        if tables[0][1].division.worker_index == 0:
            _write(save, tables)
        else:
            _of_worker_0.add(_folder(save.path))
            pieces.write_pieces(tables, None)
            save.read()
        with tf.device(HOST):
            tables[0][1].reducer.broadcast(tf.zeros([1], tf.int64), "saved")
    return None


def _write(save: ObjectSave, tables: list[tuple[str, DividedVariable]]) -> None:
    folder = pieces.new_folder(_folder(save.path))
    try:
        pieces.write_pieces(tables, folder)
        save.write(pieces.own_path(folder))
        pieces.merge_own(save.path, folder)
    finally:
        pieces.remove(folder)
