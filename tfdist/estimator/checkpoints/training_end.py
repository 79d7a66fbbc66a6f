"""The end of a training, as the chief notes it in model_dir for the evaluator.

    chief       removes the note | trains ... saves the last checkpoint | writes the note
    evaluator   evaluates each new checkpoint ...  sees the note: evaluates the last one, ends

A training may end before max_steps: its input is over, or a hook stops it. The evaluator cannot see
that in the checkpoints. The file, model_dir/training.ended, says who wrote it and when, since that
of an earlier training may be there until the chief begins.
"""

from __future__ import annotations

import json
import os
import socket
import time
import uuid

import psutil
import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.estimator.checkpoints import model_dir_lock

FILE_NAME = "training.ended"

# A note that an evaluator finds when it starts is either that of an earlier training, which the
# chief is about to remove, or that of its own, which is over. It counts after this time, unless a
# chief holds the lock of the model_dir.
OLD_NOTE_S = 600.0


def write_end(model_dir: str) -> None:
    """Notes that the training has ended; a warning if the note cannot be written."""
    try:
        with tf.io.gfile.GFile(_path(model_dir), "w") as file:
            note = {"id": uuid.uuid4().hex, "host": socket.gethostname(), "time_s": time.time()}
            file.write(json.dumps(note))
    except tf.errors.OpError as error:
        v1.logging.warning(
            "An evaluator will not see that the training has ended: %s cannot be written (%s).",
            _path(model_dir),
            error.message,
        )


def remove_end(model_dir: str) -> None:
    """Removes the note of an earlier training."""
    if tf.io.gfile.exists(_path(model_dir)):
        tf.io.gfile.remove(_path(model_dir))


class TrainingEnd:
    """The end of the training in a model_dir, for an evaluator that begins now."""

    def __init__(self, model_dir: str) -> None:
        self._model_dir = model_dir
        found = self._read()
        self._old = "" if _is_later_than_this_process(found) else found
        self._old_since = time.monotonic()

    def has_come(self) -> bool:
        """Returns whether the chief has noted the end of the training."""
        found = self._read()
        if not found or found != self._old:
            self._old = ""
            return bool(found)
        if tf.io.gfile.exists(os.path.join(self._model_dir, model_dir_lock.FILE_NAME)):
            self._old_since = time.monotonic()
        return time.monotonic() - self._old_since > OLD_NOTE_S

    def _read(self) -> str:
        try:
            with tf.io.gfile.GFile(_path(self._model_dir), "r") as file:
                return str(file.read())
        except tf.errors.OpError:  # None, or not at the moment.
            return ""


def _is_later_than_this_process(note: str) -> bool:
    """Returns whether a chief on this machine wrote a note after this process was started.

    A short training may be over before an evaluator has imported TensorFlow. The clocks of
    different machines are not compared.
    """
    try:
        values = json.loads(note)
        is_here = values["host"] == socket.gethostname()
        return bool(is_here and values["time_s"] > psutil.Process().create_time())
    except (ValueError, KeyError, TypeError):
        return False


def _path(model_dir: str) -> str:
    return os.path.join(os.fspath(model_dir), FILE_NAME)
