"""Reading what a model_dir holds."""

from __future__ import annotations

import errno
import os
from typing import Any

import tensorflow as tf

from tfdist.cluster.endings import OneLineError

# By name, and in the object-based checkpoints of converted Keras models.
_GLOBAL_STEP_NAMES = ("global_step", "estimator_global_step/.ATTRIBUTES/VARIABLE_VALUE")


class ModelDirError(OneLineError, PermissionError):
    """The model_dir cannot be written."""


def latest(model_dir: str) -> str | None:
    """Returns the newest checkpoint's path, or None."""
    return tf.train.latest_checkpoint(model_dir)


def newest_at(path: str) -> str | None:
    """Returns a checkpoint's own path, and of a folder the newest one's, None if it has none."""
    return latest(path) if tf.io.gfile.isdir(path) else path


def step_of(checkpoint: str) -> int:
    """Returns the global step that a checkpoint holds, 0 if it holds none."""
    try:
        reader = tf.train.load_checkpoint(checkpoint)
    except tf.errors.NotFoundError:
        return 0
    names = (name for name in _GLOBAL_STEP_NAMES if reader.has_tensor(name))
    return next((int(reader.get_tensor(name)) for name in names), 0)


def variable_names(model_dir: str) -> list[str]:
    """Names the variables of the newest checkpoint; ValueError if there is none."""
    return [name for name, _ in tf.train.list_variables(_required(model_dir))]


def variable_value(model_dir: str, name: str) -> Any:
    """Returns a variable's value in the newest checkpoint; ValueError if there is none."""
    return tf.train.load_variable(_required(model_dir), name)


def _required(model_dir: str) -> str:
    path = latest(model_dir)
    if path is None:
        raise ValueError(f"Could not find trained model in model_dir: {model_dir}. Train first.")
    return path


def require_writable(model_dir: str) -> None:
    """Refuses a model_dir that cannot be written, before anything is trained.

    Raises:
      ModelDirError: One line that names the folder and the cause.
      OSError: If the disk is full.
    """
    try:
        os.makedirs(model_dir, exist_ok=True)
        probe = os.path.join(model_dir, f".write-test-{os.getpid()}")
        with open(probe, "w"):
            pass
        os.remove(probe)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise
        raise ModelDirError(
            f"model_dir {model_dir!r} cannot be written: {error.strerror}. Choose another folder, "
            "or change its owner or mode."
        ) from None
