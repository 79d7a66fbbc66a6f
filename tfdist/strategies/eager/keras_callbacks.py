"""Callbacks that tfdist adds to Keras' own, and files that are written once.

Each list of callbacks begins with one that makes statistics equal on all replicas, so that what
follows evaluates, saves and decides alike. It ends with one that gives every worker the state that
worker 0 has restored. A callback that writes files does so on the chief. On the other workers it
writes to a folder that is thrown away.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import tensorflow as tf

from tfdist.strategies.eager.replica_variable import note_updates, synchronize

# The attribute of each callback that names what it writes.
_WRITES = {
    "BackupAndRestore": "backup_dir",
    "CSVLogger": "filename",
    "ModelCheckpoint": "filepath",
    "TensorBoard": "log_dir",
}


def own_callbacks(base: Any, strategy: Any) -> tuple[Any, Any]:
    """Returns the first and the last callback of a list.

    Args:
      base: The library's Callback.
      strategy: The strategy of the model.
    """
    reducer = strategy.extended.reducer

    def equal(self: Any, *args: Any, **kwargs: Any) -> None:
        synchronize()

    def changed(self: Any, *args: Any, **kwargs: Any) -> None:
        note_updates()

    first = type(
        "EqualStatistics",
        (base,),
        {
            "on_epoch_begin": changed,
            "on_epoch_end": equal,
            "on_train_end": equal,
            "on_test_begin": equal,
            "on_predict_begin": equal,
        },
    )

    def share(self: Any, logs: Any = None) -> None:
        share_state(self.model, reducer)

    last = type("StateOfWorker0", (base,), {"on_train_begin": share})
    return first(), last()


def share_state(model: Any, reducer: Any) -> None:
    """Gives every worker the weights, the optimizer's state and the epoch of worker 0.

    A collective. Worker 0 alone may have found a backup.
    """
    if reducer.collectives.num_workers == 1:
        return
    optimizer = getattr(model, "optimizer", None)
    variables = [*model.variables, *_variables_of(optimizer)] if model.built else []
    for number, variable in enumerate(variables):
        if tf.as_dtype(variable.dtype).is_numpy_compatible and variable.dtype != tf.string:
            value = tf.convert_to_tensor(variable)
            variable.assign(reducer.broadcast(value, f"state/{number}"))
    epoch = getattr(model, "_initial_epoch", None)
    if hasattr(model, "_initial_epoch"):
        shared = reducer.broadcast(tf.constant(epoch or 0), "initial_epoch")
        model._initial_epoch = int(shared)  # noqa: SLF001


def _variables_of(optimizer: Any) -> Sequence[Any]:
    variables = getattr(optimizer, "variables", ())
    return variables() if callable(variables) else variables


def send_files_elsewhere(library: ModuleType, callbacks: Sequence[Any]) -> list[Any]:
    """Makes the library's callbacks of a worker that is not the chief write to a temporary folder.

    `BackupAndRestore` is left out: worker 0 restores, and shares what it has found.
    """
    kept = []
    for callback in callbacks:
        for name, attribute in _WRITES.items():
            if isinstance(callback, getattr(library.callbacks, name, ())):
                path = str(getattr(callback, attribute, ""))
                if not Path(path).is_relative_to(_folder()):
                    setattr(callback, attribute, str(_folder() / (Path(path).name or "files")))
        if not isinstance(callback, library.callbacks.BackupAndRestore):
            kept.append(callback)
    return kept


@cache
def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="tfdist_"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
