"""Pieces: bounded numbers of rows that the owners send to worker 0 for a checkpoint, and get back.

A checkpoint of a divided table has TensorFlow's format for a partitioned variable: one name, and
slices of the first axis. No worker holds all of them:

    worker 0                                     worker 1
    own rows: one slice of the saver's files
    piece 1 as a file    <-- 32 MB ---------     rows 0 to 130,000 of its own
    piece 2 as a file    <-- 32 MB ---------     rows 130,000 to 260,000
    merges the files' indexes; no values move

    own rows from the checkpoint
    reads piece 1        --- 32 MB -------->     writes these rows
    ...

Reading a slice works whatever slices the checkpoint has: those of another number of workers, or a
whole variable. All workers run the same pieces in the same order. Every worker gets each message.
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.process.identity import is_abandoned, owned_name
from tfdist.strategies.divided.variable import DividedTableError, DividedVariable
from tfdist.strategies.placement import HOST
from tfdist.strategies.reductions.division import Division
from tfdist.strategies.reductions.reducer import Reducer

PIECE_BYTES = 32 << 20
_PREFIX = ".tables-"
_PIECE = "piece"
_OWN = "own"

# The pieces that worker 0 has got for the next checkpoint of a graph: their folder.
_collected: WeakKeyDictionary[tf.Graph, str] = WeakKeyDictionary()


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Some rows of a worker.

    Attributes:
      owner: The worker.
      start: The first row, among the owner's.
      count: The number of rows.
      spec: TensorFlow's description of the slice in the whole table.
    """

    owner: int
    start: int
    count: int
    spec: str


def rows_in_piece(division: Division) -> int:
    """Returns the most rows of a piece, at most those of a worker."""
    most_own = division.start(1)  # Worker 0 has as many as any.
    return min(most_own, max(1, PIECE_BYTES // max(1, division.row_bytes)))


def pieces_of_others(division: Division) -> Iterator[Piece]:
    """Yields the pieces of a table that worker 0 does not have, in the order of their rows."""
    shape = " ".join(map(str, division.shape))
    inner = "".join(":-" for _ in division.shape[1:])
    size = rows_in_piece(division)
    for owner in range(1, division.num_workers):
        first, stop = division.start(owner), division.start(owner + 1)
        for start in range(first, stop, size):
            count = min(size, stop - start)
            spec = f"{shape} {start},{count}{inner}"
            yield Piece(owner=owner, start=start - first, count=count, spec=spec)


def divided_in(graph: tf.Graph) -> list[DividedVariable]:
    """Returns the divided tables and slots of a graph, in the order of their creation."""
    return [
        variable
        for variable in graph.get_collection(v1.GraphKeys.GLOBAL_VARIABLES)
        if isinstance(variable, DividedVariable)
    ]


@dataclass(frozen=True)
class _Ops:
    """The ops that move a piece of one variable; what is not a placeholder is a collective."""

    owner: tf.Tensor
    start: tf.Tensor
    count: tf.Tensor
    rows: tf.Tensor  # [rows in a piece, ...], those of the owner
    given: tf.Tensor  # [rows in a piece, ...], of worker 0
    update: tf.Operation


@dataclass
class GraphPieces:
    """Moves the pieces of the current graph's tables between worker 0 and their owners.

    Every worker makes one, before the graph is complete, and calls the same methods.

    Args:
      reducer: Sends values between the workers.
    """

    reducer: Reducer
    variables: list[DividedVariable] = field(init=False)
    _ops: list[_Ops] = field(init=False)

    def __post_init__(self) -> None:
        self.variables = divided_in(v1.get_default_graph())
        with tf.device(HOST), tf.name_scope("pieces_of_tables"):
            self._ops = [self._make(variable) for variable in self.variables]

    def _make(self, variable: DividedVariable) -> _Ops:
        collectives, division = self.reducer.collectives, variable.division
        size = rows_in_piece(division)
        owner, start, count = (v1.placeholder(tf.int32, []) for _ in range(3))
        is_own = tf.equal(owner, collectives.worker_index)
        last = division.own_shape[0] - 1
        rows = variable.gather_own(tf.minimum(start + tf.range(size), last))
        bits_dtype = {4: tf.int32, 8: tf.int64}[variable.dtype.size]  # Added to zeros, exactly.
        bits = tf.where(is_own, tf.bitcast(rows, bits_dtype), tf.zeros([], bits_dtype))
        bits.set_shape([size, *division.shape[1:]])
        (total,) = collectives.sum([bits], f"{variable.op.name}/piece")
        given = v1.placeholder(variable.dtype, [size, *division.shape[1:]])
        sent = collectives.broadcast(tf.identity(given), f"{variable.op.name}/piece_back")
        own_count = tf.where(is_own, count, 0)
        with tf.device(variable.device):
            update = tf.raw_ops.ResourceScatterUpdate(
                resource=variable.handle,
                indices=start + tf.range(own_count),
                updates=sent[:own_count],
            )
        return _Ops(owner, start, count, tf.bitcast(total, variable.dtype), given, update)

    def collect(self, session: v1.Session, folder: str | None) -> None:
        """Gives worker 0 the rows of all others, as files in a folder; None elsewhere.

        A collective. The next checkpoint of the graph takes the files.
        """
        graph = session.graph
        forget(graph)
        kept = None if folder is None else new_folder(folder)
        number = 0
        for variable, ops in zip(self.variables, self._ops, strict=True):
            name = variable.name_in_checkpoint
            for piece in pieces_of_others(variable.division):
                rows = session.run(ops.rows, {ops.owner: piece.owner, ops.start: piece.start})
                if kept is not None:
                    path = os.path.join(kept, f"{_PIECE}-{number}")
                    _write(path, name, piece.spec, rows[: piece.count])
                number += 1
        if kept is not None:
            _collected[graph] = kept

    def restore(self, session: v1.Session, checkpoint: str | None) -> None:
        """Gives the other workers their rows of worker 0's checkpoint; None elsewhere.

        A collective.
        """
        for variable, ops in zip(self.variables, self._ops, strict=True):
            name = variable.name_in_checkpoint
            for piece in pieces_of_others(variable.division):
                given = np.zeros(ops.given.shape.as_list(), ops.given.dtype.as_numpy_dtype)
                if checkpoint is not None:
                    given[: piece.count] = _read(checkpoint, name, piece.spec, variable.dtype)
                place = {ops.owner: piece.owner, ops.start: piece.start, ops.count: piece.count}
                session.run(ops.update, {**place, ops.given: given})


def piece_of_owner(variable: DividedVariable, piece: Piece) -> tf.Tensor:
    """Returns a piece's rows on every worker, in TensorFlow 2. A collective."""
    bits_dtype = {4: tf.int32, 8: tf.int64}[variable.dtype.size]  # Added to zeros, exactly.
    division, collectives = variable.division, variable.reducer.collectives
    with tf.device(HOST):
        bits = tf.zeros([piece.count, *division.shape[1:]], bits_dtype)
        if piece.owner == division.worker_index:
            rows = variable.gather_own(tf.range(piece.start, piece.start + piece.count))
            bits = tf.bitcast(rows, bits_dtype)
        (total,) = collectives.sum([bits], f"{division.name}/piece")
        return tf.bitcast(total, variable.dtype)


def write_pieces(tables: Sequence[tuple[str, DividedVariable]], folder: str | None) -> None:
    """Writes the rows of all others to files in a folder, in TensorFlow 2; None writes nothing.

    A collective. `merge_own` merges the files.

    Args:
      tables: The tables, and their names in the checkpoint.
      folder: The folder, on worker 0; None elsewhere.
    """
    numbers = itertools.count()
    for name, variable in tables:
        for piece in pieces_of_others(variable.division):
            rows, number = piece_of_owner(variable, piece), next(numbers)
            if folder is not None:
                _write(os.path.join(folder, f"{_PIECE}-{number}"), name, piece.spec, rows.numpy())


def give_piece(variable: DividedVariable, piece: Piece, rows: Any) -> None:
    """Gives a piece's owner the rows that worker 0 has, in TensorFlow 2. A collective.

    Other workers than worker 0 give None.
    """
    division = variable.division
    if rows is None:
        rows = tf.zeros([piece.count, *division.shape[1:]], variable.dtype)
    with tf.device(HOST):
        own = tf.convert_to_tensor(rows, variable.dtype)
        sent = variable.reducer.broadcast(own, f"{division.name}/piece_back")
    if piece.owner == division.worker_index:
        variable.assign_own(piece.start, sent)


def own_pieces(division: Division) -> Iterator[tuple[int, int]]:
    """Yields first row and number of rows of pieces of this worker's rows, among these."""
    size = rows_in_piece(division)
    for start in range(0, division.own_shape[0], size):
        yield start, min(size, division.own_shape[0] - start)


def take(graph: tf.Graph) -> str | None:
    """Returns the folder of the pieces for a checkpoint of a graph; None if it needs none.

    The caller merges them.

    Raises:
      DividedTableError: If the graph has divided tables whose rows have not been collected.
    """
    found = _collected.pop(graph, None)
    if found is None and divided_in(graph):
        refuse_saver(graph)
    return found


def refuse_saver(graph: tf.Graph) -> None:
    """Raises a DividedTableError for a graph whose divided tables a saver cannot save."""
    division = divided_in(graph)[0].division
    raise DividedTableError(
        f"{division.name} is divided between {division.num_workers} workers, and worker 0 cannot "
        "save it alone. Let RunConfig's save_checkpoints_steps or _secs save, to a folder of this "
        "machine, in place of a CheckpointSaverHook or a Saver of the program."
    )


def forget(graph: tf.Graph) -> None:
    """Removes pieces that no checkpoint has taken."""
    left = _collected.pop(graph, None)
    if left is not None:
        remove(left)


def merge(path: str, folder: str) -> None:
    """Adds the pieces in a folder to the checkpoint at a path, and removes the folder.

    The values stay in the files that they are in, which get other names.
    """
    own = own_path(folder)
    directory, name = os.path.split(path)
    for file in os.listdir(directory):
        if file == f"{name}.index" or file.startswith(f"{name}.data-"):
            os.replace(os.path.join(directory, file), own + file[len(name) :])
    merge_own(path, folder)


def own_path(folder: str) -> str:
    """Returns the path for worker 0's own values in a folder of pieces."""
    return os.path.join(folder, _OWN)


def merge_own(path: str, folder: str) -> None:
    """Merges own values and the pieces in a folder into a checkpoint, and removes the folder."""
    numbers = sorted(
        int(file.split("-")[1].split(".")[0])
        for file in os.listdir(folder)
        if file.startswith(_PIECE) and file.endswith(".index")
    )
    prefixes = [
        own_path(folder),
        *(os.path.join(folder, f"{_PIECE}-{number}") for number in numbers),
    ]
    with tf.Graph().as_default(), v1.Session() as session:
        session.run(
            tf.raw_ops.MergeV2Checkpoints(
                checkpoint_prefixes=prefixes, destination_prefix=path, delete_old_dirs=False
            )
        )
    remove(folder)


def new_folder(around: str) -> str:
    """Makes a folder for pieces, and removes those of a process that ended while it saved."""
    os.makedirs(around, exist_ok=True)
    for path in Path(around).glob(f"{_PREFIX}*"):
        if is_abandoned(path):
            shutil.rmtree(path, ignore_errors=True)
    own = os.path.join(around, f"{_PREFIX}{owned_name()}")
    os.makedirs(own, exist_ok=True)
    return tempfile.mkdtemp(dir=own)


def remove(folder: str) -> None:
    """Removes a folder of pieces."""
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):  # It has those of another save.
        os.rmdir(os.path.dirname(folder))


def _write(path: str, name: str, spec: str, rows: Any) -> None:
    with tf.Graph().as_default(), tf.device(HOST), v1.Session() as session:
        given = v1.placeholder(rows.dtype, rows.shape)
        save = tf.raw_ops.SaveV2(
            prefix=path, tensor_names=[name], shape_and_slices=[spec], tensors=[given]
        )
        session.run(save, {given: rows})


def _read(path: str, name: str, spec: str, dtype: tf.DType) -> Any:
    with tf.Graph().as_default(), tf.device(HOST), v1.Session() as session:
        (rows,) = tf.raw_ops.RestoreV2(
            prefix=path, tensor_names=[name], shape_and_slices=[spec], dtypes=[dtype]
        )
        return session.run(rows)
