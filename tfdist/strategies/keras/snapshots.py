"""Snapshots of `fit`: its newest state, in the memory of each host.

    every worker             step 50 | statistics made equal | step 51   step 52 ...
    first worker of a host           | values read           | step 51   step 52 ...
    its thread "save"                                        | write to /dev/shm, rename, delete |

Values are read as tensors, which share the memory of the variables: a variable that is updated
while its value is being written gets new memory.

At a restart the first worker of each host looks for its newest snapshot. The one that has the
newest of all gives it to its own variables, and sends these to the others, as worker 0 does with a
backup.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfdist.process.endings import print_to_stderr
from tfdist.strategies.placement import HOST
from tfdist.strategies.reductions.division import division_of
from tfdist.strategies.saving.background_writes import BackgroundWrites
from tfdist.strategies.saving.checkpoint_files import file_beside
from tfdist.strategies.saving.snapshots import (
    NAME,
    HostSnapshots,
    choose_sender,
    log_failed_write,
    newest_whole,
    paths_in,
    remove_snapshot,
    restart_line,
)
from tfdist.strategies.saving.whole_files import move_all, unfinished_in
from tfdist.strategies.stop_signals import StopSignals

_STEP = "global_step"


class FitSnapshots:
    """The snapshots of one call of `fit`. Every worker makes one, with the same interval.

    Args:
      model: The model, built, with an optimizer that has its slots.
      every_steps: The interval.
      run: The name of the launcher's run.
      name: The name of the folder for this `fit`; see `name_for`.
      signals: The stop signals of this process.
    """

    def __init__(
        self, model: Any, every_steps: int, run: str, name: str, signals: StopSignals
    ) -> None:
        self._model = model
        self._every_steps = every_steps
        self._writes = BackgroundWrites(signals, log_failed_write)
        self._is_due = self._is_held = False
        self._held: Callable[[], None] | None = None
        self._host = HostSnapshots(run, name, print_to_stderr)
        self._folder = self._host.folder

    def restore(self, reducer: Any) -> tuple[int, Mapping[str, int] | None]:
        """Restores the newest snapshot of all hosts on the worker that has it.

        A collective, to be called once worker 0 has restored a backup: that counts if it is newer.
        Of two states after the same step the snapshot is the later one, after all callbacks.

        Returns:
          The worker that now has the state to go on with, and on that worker the position of the
          `fit`, in JSON; it is empty on the others. Worker 0 and None without a snapshot.
        """
        found = None if self._folder is None else newest_whole(self._folder)
        values = None
        if found is not None and self._folder is not None:
            values = self._values_in(os.fspath(self._folder / found.name))
        step = -1 if found is None or found.input is None or values is None else found.step
        own = tf.constant([[step, int(self._model.optimizer.iterations)]], tf.int64)
        rows = reducer.gather_rows(own, "snapshots").numpy().tolist()
        sender = choose_sender([step for step, _ in rows], rows[0][1] - 1)
        if sender is None:
            return 0, None
        index = reducer.collectives.worker_index
        if index == 0:
            print_to_stderr(restart_line(rows[sender][0], sender))
        if index != sender or found is None or values is None:
            return sender, {}
        for variable, value in zip(state_of(self._model), values, strict=True):
            variable.assign(value)
        return sender, found.input

    def _values_in(self, path: str) -> list[Any] | None:
        """Returns the values in a snapshot; None, and a line, if the model has other variables."""
        reader = tf.train.load_checkpoint(path)
        shapes = reader.get_variable_to_shape_map()
        own = {str(number): list(one.shape) for number, one in enumerate(state_of(self._model))}
        if {**own, _STEP: []} != shapes:
            print_to_stderr(f"The snapshot {path} is not used: the model has other variables.")
            return None
        return [reader.get_tensor(name) for name in own]

    @property
    def is_due(self) -> bool:
        """True if a snapshot is to be taken; equal on all workers."""
        return self._is_due or self._is_held

    def count(self, before: int, after: int) -> None:
        """Notes the steps of a call of the train function, after which a snapshot may be due."""
        self._writes.raise_error()
        self._is_held = False
        if self._held is not None:
            self._held()
            self._held = None
        self._is_due |= after // self._every_steps > before // self._every_steps

    def take(self, position: Mapping[str, int], *, may_end: bool) -> None:
        """Reads the values for a snapshot, and lets the thread write them.

        Every worker must call it where one is due, after statistics have been made equal.

        Args:
          position: The position of `fit`, in JSON.
          may_end: Whether the coming call may find the end of the input instead of a step: tf_keras
            refuses to go on in an epoch that has none left. The snapshot is written once the step
            is made, else that of the epoch's end.
        """
        self._is_due, self._is_held, self._held = False, may_end, None
        if self._folder is None:
            return
        self._writes.wait()
        step = position["iterations"]
        with tf.device(HOST):
            values = [tf.identity(variable) for variable in state_of(self._model)]
        size = sum(value.dtype.size * value.shape.num_elements() for value in values)
        if not self._host.has_room(step, size, copy_bytes=size):
            return
        write = partial(_write, os.fspath(self._folder), step, values, dict(position))
        start = partial(self._writes.start, f"snapshot of step {step}", write)
        if may_end:
            self._held = start
        else:
            start()

    def wait(self) -> None:
        self._writes.wait()

    def end(self) -> None:
        """Removes this host's snapshots, after a `fit` that was not interrupted."""
        self.wait()
        self._host.remove()


def why_none(model: Any, backups: Sequence[Any]) -> str:
    """Returns why a `fit` whose backups have seen the model can have no snapshots; "" if it can."""
    optimizer = getattr(model, "optimizer", None)
    if not backups:
        return "fit has no BackupAndRestore"
    if optimizer is None:
        return "the model has no optimizer"
    if not model.built or not is_built(optimizer):
        return "the model or its optimizer has no variables yet. Build the model before fit"
    if any(division_of(variable) is not None for variable in model.variables):
        return "the model has tables that are divided between the workers"
    return ""


def state_of(model: Any) -> list[Any]:
    """Returns the variables of a model and its optimizer that have numbers: the state of `fit`."""
    optimizer = getattr(model, "optimizer", None)
    of_optimizer = getattr(optimizer, "variables", ())
    of_optimizer = of_optimizer() if callable(of_optimizer) else of_optimizer
    variables = [*model.variables, *of_optimizer] if model.built else []
    rate = getattr(optimizer, "learning_rate", None)
    if isinstance(rate, tf.Variable):  # Of tf_keras, which does not count it.
        variables.append(rate)
    return [
        v for v in variables if tf.as_dtype(v.dtype).is_numpy_compatible and v.dtype != tf.string
    ]


def is_built(optimizer: Any) -> bool:
    """Returns whether an optimizer has its slots; of tf_keras only a private name says so."""
    return bool(getattr(optimizer, "built", getattr(optimizer, "_built", False)))


def _write(
    folder: str, step: int, values: Sequence[tf.Tensor], position: Mapping[str, int]
) -> None:
    """Writes a snapshot, and removes the others in the folder."""
    name = f"{NAME}-{step}"
    earlier = [path for path in paths_in(Path(folder)) if os.path.basename(path) != name]
    with unfinished_in(folder) as unfinished:
        path = os.path.join(unfinished, name)
        tf.raw_ops.SaveV2(
            prefix=path,
            tensor_names=[_STEP, *map(str, range(len(values)))],
            shape_and_slices=[""] * (1 + len(values)),
            tensors=[tf.constant(step, tf.int64), *values],
        )
        Path(file_beside(path)).write_text(json.dumps(position))
        move_all(unfinished, folder)
    for path in earlier:
        remove_snapshot(path)
