"""Files of Keras 3, `.weights.h5` and `.keras`, with tables that are divided between the workers.

A file has the whole table, as without a division, and no worker holds it: worker 0 gets the rows of
the others in pieces, and writes one after the other. All workers must save together; what the
others write is thrown away.

    model.save_weights, on all workers     worker 0 writes own rows, then each piece
    model.load_weights, on all workers     each reads its own rows from the file
    BackupAndRestore, at the start         worker 0 reads its own rows, and sends the others theirs

Private names: of Keras 3 `saving_lib.H5IOStore`, its `_h5_entry_group`, `_h5_entry_initialized`,
`_h5_entry_path` and `_create_h5_group`; `BackupAndRestore._load_model`.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.strategies.divided.pieces import (
    give_piece,
    own_pieces,
    piece_of_owner,
    pieces_of_others,
)
from tfdist.strategies.divided.variable import (
    DividedTableError,
    DividedVariable,
    shapes_of_tables,
)
from tfdist.strategies.eager.replica_variable import tf_variable
from tfdist.strategies.eager.run import needs_all_workers
from tfdist.strategies.keras.extension import extends
from tfdist.strategies.keras.snapshots import state_of
from tfdist.strategies.reductions.division import Division, division_of


class _Restored:
    """The rows that worker 0 restores alone, from a backup: file and name of each variable."""

    def __init__(self) -> None:
        self.is_alone = False
        self.places: dict[int, tuple[str, str]] = {}


_restored = _Restored()


def has_divided(model: Any) -> bool:
    """Returns whether a model has divided tables."""
    return any(division_of(variable) is not None for variable in model.variables)


def share_restored(model: Any) -> None:
    """Sends the workers the rows of tables that worker 0 has restored from a backup.

    A collective if the model has divided tables.
    """
    import h5py  # type: ignore[import-untyped]

    for number, variable in enumerate(state_of(model)):
        division = division_of(variable)
        if division is None:
            continue
        table = tf_variable(variable)
        place = _restored.places.pop(id(table), None)
        own = tf.constant([int(place is not None)], tf.int64)
        is_there = table.reducer.broadcast(own, f"restored/{number}")
        if not int(is_there[0]):
            continue
        file = None if place is None else h5py.File(place[0], "r")
        rows = None if file is None or place is None else file[place[1]]
        for piece in pieces_of_others(division):
            first = division.start(piece.owner) + piece.start
            sent = None if rows is None else rows[first : first + piece.count]
            give_piece(table, piece, sent)
        if file is not None:
            file.close()


def adapt_table_files(library: ModuleType, saving_lib: ModuleType) -> None:
    """Makes Keras 3 save and load divided tables in pieces."""
    store = saving_lib.H5IOStore

    @extends(store, "__setitem__")
    def put(put_whole: Callable[..., None], self: Any, key: str, value: Any) -> None:
        division = division_of(value)
        if division is None:
            put_whole(self, key, value)
            return
        if not self._h5_entry_initialized:
            self._create_h5_group(self._h5_entry_path)
        with needs_all_workers("saving a divided table", lambda: f"saving {division.name}"):
            _write(self._h5_entry_group, key, tf_variable(value))

    @extends(store, "__getitem__")
    def get(get_whole: Callable[..., Any], self: Any, key: str) -> Any:
        found = saving_lib.safe_get_h5_dataset(self._h5_entry_group, key)
        return _Rows(found) if _is_of_a_table(found) else get_whole(self, key)

    @extends(library.optimizers.Optimizer, "save_own_variables")
    def save_each(save: Callable[..., None], self: Any, store: Any) -> None:
        if not any(division_of(variable) is not None for variable in self.variables):
            save(self, store)
            return
        for number, variable in enumerate(self.variables):
            is_divided = division_of(variable) is not None
            store[str(number)] = variable if is_divided else variable.numpy()

    @extends(library.Variable, "assign")
    def assign_own(assign: Callable[..., Any], self: Any, value: Any) -> Any:
        if not isinstance(value, _Rows):
            return assign(self, value)
        division = division_of(self)
        if division is None:
            return assign(self, value.whole())
        _read(tf_variable(self), division, value)
        return self

    @extends(library.callbacks.BackupAndRestore, "_load_model")
    def load_alone(load: Callable[..., Any], self: Any) -> Any:
        _restored.is_alone = True
        try:
            return load(self)
        finally:
            _restored.is_alone = False


class _Rows:
    """A dataset of a file, of which a worker reads its rows."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self.shape = tuple(dataset.shape)

    def whole(self) -> Any:
        return np.array(self.dataset)


def _is_of_a_table(dataset: Any) -> bool:
    return tuple(getattr(dataset, "shape", ())) in shapes_of_tables()


def _write(group: Any, key: str, table: DividedVariable) -> None:
    """Writes a table on worker 0; nothing elsewhere. A collective."""
    division = table.division
    rows = None
    if division.worker_index == 0:
        rows = group.create_dataset(key, shape=division.shape, dtype=table.dtype.as_numpy_dtype)
        for start, count in own_pieces(division):
            own = table.gather_own(tf.range(start, start + count))
            rows[start : start + count] = own.numpy()
    else:
        group[key] = np.zeros([0], np.float32)
    for piece in pieces_of_others(division):
        received = piece_of_owner(table, piece)
        if rows is not None:
            first = division.start(piece.owner) + piece.start
            rows[first : first + piece.count] = received.numpy()


def _read(table: DividedVariable, division: Division, value: _Rows) -> None:
    """Reads this worker's rows of a file."""
    if value.shape != division.shape:
        raise DividedTableError(
            f"{division.name} has the shape {list(division.shape)} in the model and "
            f"{list(value.shape)} in the file. Load the file of the same model."
        )
    for start, count in own_pieces(division):
        first = division.own_start + start
        table.assign_own(start, value.dataset[first : first + count])
    if _restored.is_alone:
        _restored.places[id(table)] = (value.dataset.file.filename, value.dataset.name)
