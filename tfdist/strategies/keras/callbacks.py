"""Callbacks that tfdist adds to Keras' own, and files that are written once.

Each list of callbacks begins with one that makes statistics equal on all replicas, so that what
follows evaluates, saves and decides alike. It ends with one that gives every worker the state that
worker 0 has restored from a backup, or another one from a snapshot. A callback that writes files
does so on the chief. On the other workers BackupAndRestore writes nothing (see `backups`), and the
others write to a folder that is thrown away, with those of workers that were killed.
"""

from __future__ import annotations

import atexit
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import tensorflow as tf

from tfdist.cluster.environment import read_run, read_snapshot_steps
from tfdist.process.endings import print_to_stderr
from tfdist.process.identity import is_abandoned, owned_name
from tfdist.process.progress_file import find_progress_file
from tfdist.process.snapshot_folders import name_for
from tfdist.strategies.eager.replica_variable import note_updates, synchronize, tf_variable
from tfdist.strategies.eager.run import all_stop, needs_all_workers
from tfdist.strategies.keras.backups import (
    backups_in,
    position_of_backup,
    recover_backups,
    refuse_backups,
    refuse_tables,
)
from tfdist.strategies.keras.comparison import compare_lengths
from tfdist.strategies.keras.fit import BAR_INTERVAL_S, FitPosition, FitRun, current_fit
from tfdist.strategies.keras.input import start_after
from tfdist.strategies.keras.snapshots import FitSnapshots, is_built, state_of, why_none
from tfdist.strategies.keras.table_files import has_divided, share_restored
from tfdist.strategies.reductions.division import division_of
from tfdist.strategies.values.weight_check import check_eager_weights

# The attribute of each callback that names what it writes.
_WRITES = {
    "BackupAndRestore": "backup_dir",
    "CSVLogger": "filename",
    "ModelCheckpoint": "filepath",
    "TensorBoard": "log_dir",
}
# The beginning of the name of the folder for files of a worker that is not the chief.
_THROWN_AWAY = "tfdist_files-"
# Keras' callbacks whose own method for batches reads no logs: always, or if a setting is "epoch".
_READS_NO_BATCH = {
    "BackupAndRestore": None,
    "ModelCheckpoint": "save_freq",
    "TensorBoard": "update_freq",
}


def tfdist_callbacks(callbacks: Any, strategy: Any, given: Sequence[Any]) -> tuple[Any, Any]:
    """Returns the first and the last callback of a list; those in `given` are between them.

    `callbacks` is the module of a Keras library, from whose class both derive.
    """

    def derived(kind: type) -> Any:
        return type(kind.__name__, (kind, callbacks.Callback), {})

    backups = backups_in(callbacks, given)
    is_in_batches = any(_sees_batches(callbacks, callback) for callback in given)
    after = derived(AfterOthersInBatches if is_in_batches else AfterOthers)
    first = derived(BeforeOthers)(strategy, backups)
    return first, after(strategy, callbacks, given, backups)


class BeforeOthers:
    """Makes statistics equal on all replicas, before other callbacks evaluate or save them.

    Before a backup is restored, it is checked.

    A callback of a Keras library: see `tfdist_callbacks`.
    """

    model: Any

    def __init__(self, strategy: Any, backups: Sequence[Any]) -> None:
        super().__init__()
        self._strategy = strategy
        self._backups = backups

    def on_train_begin(self, logs: Any = None) -> None:
        model = self.model
        if self._backups:
            if model.built:
                refuse_tables(self._backups, model)
            self._check_backups()
        optimizer: Any = getattr(model, "optimizer", None)
        if model.built and hasattr(optimizer, "build") and not is_built(optimizer):
            with self._strategy.scope():  # Before a backup is read, which worker 0 alone does.
                optimizer.build(model.trainable_variables)

    def _check_backups(self) -> None:
        """Replaces damaged backups on worker 0. A collective.

        Raises:
          CheckpointDamagedError: On every worker, if there are backups, but none is whole.
          ModelDirError: On every worker, if their folder cannot be read or written.
        """
        extended = self._strategy.extended
        problem = recover_backups(self._backups) if extended.should_checkpoint else ""
        with needs_all_workers("the start of fit"):
            problem = share_text(problem, extended.reducer)
        refuse_backups(problem)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        note_updates()
        run = current_fit()
        if run is not None:
            run.begin_epoch(epoch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        run = current_fit()
        if run is not None:
            run.end_epoch(logs)
        with needs_all_workers("the end of an epoch", lambda: f"the end of epoch {epoch + 1}"):
            synchronize()
            check_eager_weights(
                [tf_variable(v) for v in self.model.trainable_variables if division_of(v) is None],
                self._strategy.extended.collectives,
            )

    def on_train_end(self, logs: Any = None) -> None:
        _synchronize_in("the end of fit")

    def on_test_begin(self, logs: Any = None) -> None:
        _synchronize_in("evaluate")

    def on_predict_begin(self, logs: Any = None) -> None:
        _synchronize_in("predict")


def _synchronize_in(kind: str) -> None:
    with needs_all_workers(kind):
        synchronize()


class AfterOthers:
    """Shares what one worker has restored, then lets the run know what it has to do.

    A callback of a Keras library: see `tfdist_callbacks`.
    """

    model: Any
    params: Any

    def __init__(
        self, strategy: Any, callbacks: Any, given: Sequence[Any], backups: Sequence[Any]
    ) -> None:
        super().__init__()
        self._strategy = strategy
        self._callbacks = callbacks  # The module.
        self._given = given
        self._backups = backups

    def on_train_begin(self, logs: Any = None) -> None:
        run, reducer = current_fit(), self._strategy.extended.reducer
        sender, position = 0, None
        steps, epochs = self.params.get("steps"), self.params.get("epochs") or 1
        with needs_all_workers("the start of fit"):
            if run is not None:
                compare_lengths(epochs, run.first_epoch, steps, reducer.collectives)
            if run is not None:
                run.snapshots = self._make_snapshots(run)
                if run.snapshots is not None:
                    sender, position = run.snapshots.restore(reducer)
            share_state(self.model, reducer, sender)
        if run is not None:
            self._resume(run, sender, position)
            first = getattr(self.model, "_initial_epoch", None) or 0
            run.begin(steps, first, epochs, self._log_interval_s())
            run.save_backup = self._save_backup

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        run = current_fit()
        if run is not None:
            if run.num_workers > 1:
                self._agree_to_stop(run, epoch)
            run.take_snapshot(is_in_epoch=False)

    def on_train_end(self, logs: Any = None) -> None:
        run = current_fit()
        if run is not None and run.snapshots is not None:
            run.snapshots.end()

    def on_test_begin(self, logs: Any = None) -> None:
        """Agrees whether a worker reads the logs of each step. A collective."""
        logs_of_all = getattr(self.model.test_function, "logs_of_all", None)
        if logs_of_all is not None:
            has_bar = current_fit() is None and self._shows_bar()
            own = has_bar or any(_reads_test_logs(self._callbacks, one) for one in self._given)
            logs_of_all.is_read = self._any_worker(own, "evaluate")

    def _any_worker(self, own: bool, kind: str, place: Callable[[], str] | None = None) -> bool:
        """Returns whether a condition holds on any worker. A collective."""
        collectives = self._strategy.extended.collectives
        if collectives.num_workers == 1:
            return own
        with needs_all_workers(kind, place):
            vote = tf.constant([[int(own)]], tf.int64)
            return bool(collectives.gather(vote, "votes", same_rows=True).numpy().any())

    def _agree_to_stop(self, run: FitRun, epoch: int) -> None:
        """Stops all workers after this epoch if a callback of one has said so. A collective."""
        own = run.wants_stop or bool(self.model.stop_training)
        if self._any_worker(own, "the end of an epoch", lambda: f"the end of epoch {epoch + 1}"):
            self.model.stop_training = True

    def _log_interval_s(self) -> float:
        """Returns how often logs are read during an epoch: 0 for each step, or never."""
        if any(reads_batch_logs(self._callbacks, callback) for callback in self._given):
            return 0.0
        return BAR_INTERVAL_S if self._shows_bar() else math.inf

    def _shows_bar(self) -> bool:
        has_bar = self.params.get("verbose") in (1, "auto")
        return has_bar and bool(self._strategy.extended.should_checkpoint)

    def _make_snapshots(self, run: FitRun) -> FitSnapshots | None:
        """Returns the snapshots of `fit`; None if none are kept. A collective, with backups."""
        every_steps, launched = read_snapshot_steps(), read_run()
        if not every_steps or launched is None:
            return None
        why_not = why_none(self.model, self._backups)
        if why_not:
            if run.is_first:
                print_to_stderr(f"No snapshots are kept in memory: {why_not}.")
            return None
        name = name_for(os.fspath(self._backups[0].backup_dir))  # Worker 0's counts.
        halves = [int(name[:8], 16), int(name[8:], 16)]
        halves = share_numbers(halves, self._strategy.extended.reducer)
        name = "".join(f"{half:08x}" for half in halves)
        return FitSnapshots(self.model, every_steps, launched, name, run.signals)

    def _resume(self, run: FitRun, sender: int, position: Mapping[str, int] | None) -> None:
        """Lets the input go on where a backup or a snapshot was made. A collective, with backups.

        The position on the worker that has restored it, the sender, is what `FitSnapshots.restore`
        has returned; None takes the backup's.
        """
        model, extended = self.model, self._strategy.extended
        if not self._backups or getattr(model, "optimizer", None) is None:
            return
        saved = None
        if position:
            saved = FitPosition(**position)
        elif position is None and extended.should_checkpoint:
            saved = position_of_backup(self._backups, model)
        shared = [-1, 0]
        if saved is not None:
            divides = extended.divides_batches
            shared = [*start_after(saved, num_workers=run.num_workers, divides_batches=divides)]
        epoch, steps = share_numbers(shared, extended.reducer, sender)
        if epoch < 0:
            return
        run.resume(epoch, steps)
        if hasattr(model, "_initial_epoch"):  # Keras 3
            model._initial_epoch = epoch  # noqa: SLF001
            for backup in self._backups:  # It counts from here.
                backup._current_epoch = epoch  # noqa: SLF001
                backup._last_batch_seen = max(0, steps - 1)  # noqa: SLF001

    def _save_backup(self) -> bool:
        """Saves what BackupAndRestore would; returns whether the list has one."""
        synchronize()
        for backup in self._backups:
            if self._strategy.extended.should_checkpoint or has_divided(self.model):
                _save_backup(backup)
        return bool(self._backups)


class AfterOthersInBatches(AfterOthers):
    """Does the same, and lets `stop_training` of a callback within an epoch stop all workers.

    They stop after the same step: at once if all callbacks have set it, else after the next step.
    """

    _supports_tf_logs = True  # tf_keras need not convert logs for it.

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        run = current_fit()
        if run is None or not self.model.stop_training or run.stops:
            return
        run.wants_stop = True
        self.model.stop_training = run.stops = all_stop()


def _sees_batches(callbacks: Any, callback: Any) -> bool:
    """Returns whether a callback has a method of its own for batches of a training."""
    names = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")
    return any(
        getattr(getattr(callback, name), "__func__", None) is not getattr(callbacks.Callback, name)
        for name in names
    )


def reads_batch_logs(callbacks: Any, callback: Any) -> bool:
    """Returns whether a callback of `fit`, or of a class derived from Keras', may read all logs."""
    known = [callbacks.Callback]
    for name, setting in _READS_NO_BATCH.items():
        kind = getattr(callbacks, name)
        if isinstance(callback, kind) and (
            setting is None or getattr(callback, setting, None) == "epoch"
        ):
            known.append(kind)
    for name in ("on_train_batch_end", "on_batch_end"):
        method = getattr(getattr(callback, name), "__func__", None)
        if all(method is not getattr(kind, name) for kind in known):
            return True
    return False


def _reads_test_logs(callbacks: Any, callback: Any) -> bool:
    """Returns whether a callback may read the logs of each step of `evaluate`."""
    method = getattr(callback.on_test_batch_end, "__func__", None)
    return method is not callbacks.Callback.on_test_batch_end


def _save_backup(backup: Any) -> None:
    """Calls the private method that saves: Keras 3's, or tf_keras'."""
    if hasattr(backup, "_save_model"):
        backup._save_model()  # noqa: SLF001
    else:
        backup._backup(epoch=backup._current_epoch)  # noqa: SLF001


def share_state(model: Any, reducer: Any, sender: int = 0) -> None:
    """Gives every worker the weights, the optimizer's state and the epoch of one. A collective.

    That is the worker that has restored a snapshot, or worker 0, which may have a backup.
    """
    if reducer.collectives.num_workers == 1:
        return
    share_restored(model)
    for number, variable in enumerate(state_of(model)):
        if division_of(variable) is not None:
            continue
        value = tf.convert_to_tensor(variable)
        variable.assign(reducer.broadcast(value, f"state/{number}", sender))
    if hasattr(model, "_initial_epoch"):  # Keras 3
        (model._initial_epoch,) = share_numbers([model._initial_epoch or 0], reducer)  # noqa: SLF001


def share_numbers(numbers: Sequence[int], reducer: Any, sender: int = 0) -> list[int]:
    """Returns a worker's integers. A collective."""
    own = tf.constant([int(n) for n in numbers], tf.int64)
    return [int(number) for number in reducer.broadcast(own, "numbers", sender).numpy()]


def share_text(text: str, reducer: Any) -> str:
    """Returns worker 0's text. A collective."""
    codes = [ord(character) for character in text]
    (size,) = share_numbers([len(codes)], reducer)
    own = codes if len(codes) == size else [0] * size
    return "".join(map(chr, share_numbers(own, reducer))) if size else ""


def support_backups(library: ModuleType, callbacks: Sequence[Any], strategy: Any) -> None:
    """Adds a strategy to those that tf_keras' BackupAndRestore knows."""
    for callback in callbacks:
        if isinstance(callback, library.callbacks.BackupAndRestore):
            known = getattr(callback, "_supported_strategies", ())
            callback._supported_strategies = (*known, type(strategy))  # noqa: SLF001


def send_files_elsewhere(library: ModuleType, callbacks: Sequence[Any]) -> None:
    """Makes the library's callbacks of a worker that is not the chief write to a temporary folder.

    Nothing is restored there: worker 0 restores, and shares what it has found.
    """
    for callback in callbacks:
        for name, attribute in _WRITES.items():
            if isinstance(callback, getattr(library.callbacks, name, ())):
                path = str(getattr(callback, attribute))
                if Path(path).is_relative_to(_folder()):
                    continue
                new = str(_folder() / (Path(path).name or "files"))
                folder = os.path.join(path, "")
                for kept, value in vars(callback).items():
                    if isinstance(value, str | os.PathLike) and str(value).startswith(folder):
                        setattr(callback, kept, os.path.join(new, str(value)[len(folder) :]))
                setattr(callback, attribute, new)


@cache
def _folder() -> Path:
    """Makes the folder that is thrown away: in the agent's, which is removed in any case."""
    file = find_progress_file()
    around = Path(tempfile.gettempdir()) if file is None else file.folder
    for other in around.glob(f"{_THROWN_AWAY}*"):
        if is_abandoned(other):
            shutil.rmtree(other, ignore_errors=True)
    folder = around / f"{_THROWN_AWAY}{owned_name()}"
    folder.mkdir(mode=0o700)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
