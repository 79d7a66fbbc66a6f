"""Tells whoever wants to end the process, and the launcher, that a checkpoint is being written."""

from __future__ import annotations

import errno
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.cluster.progress import find_progress_file
from tfdist.estimator.stop_signals import StopSignals


class SavingNotes(v1.train.CheckpointSaverListener):  # type: ignore[misc]
    """Notes the beginning and the end of each save; the first of a saver's listeners.

    Args:
      signals: What this process does when it is asked to stop.
    """

    def __init__(self, signals: StopSignals) -> None:
        self._signals = signals
        self._file = find_progress_file()

    def add_to(self, saver: v1.train.CheckpointSaverHook) -> None:
        """Becomes the saver's first listener, in place of that of an earlier training."""
        others = [one for one in saver._listeners if not isinstance(one, SavingNotes)]
        saver._listeners[:] = [self, *others]  # No public way to add one.

    def before_save(self, session: Any, global_step_value: int) -> None:
        self._signals.is_saving = True
        if self._file is not None:
            self._phase = self._file.phase
            self._file.write(phase="saving")

    def after_save(self, session: Any, global_step_value: int) -> None:
        if self._file is not None:
            self._file.write(phase=self._phase)
        self._signals.is_saving = False
        self._signals.leave_unless_noted()


def refuse_too_large(error: tf.errors.OutOfRangeError, signals: StopSignals, folder: str) -> None:
    """Tells the end of the input from a checkpoint that is larger than a file may be.

    TensorFlow has the same error for both, and would end training as if all were well.

    Raises:
      OSError: If a checkpoint was being written.
    """
    if signals.is_saving:
        raise OSError(
            errno.EFBIG,
            "A checkpoint is larger than a file may be. Raise the limit (ulimit -f), or choose "
            "another file system",
            folder,
        ) from error
