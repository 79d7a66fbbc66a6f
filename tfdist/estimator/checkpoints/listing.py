"""The list of checkpoints in a model_dir."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from tfdist.strategies.saving.checkpoint_files import ModelDirError, exists
from tfdist.strategies.saving.disk_space import is_remote

# The name that `CheckpointSaverHook` gives to checkpoints, and the pattern that identifies one.
_FILE = re.compile(r"(?P<name>model\.ckpt-\d+)\.index")
_STEP = re.compile(r"-(\d+)$")


@dataclass(frozen=True, kw_only=True)
class Listed:
    """The checkpoints of a folder.

    Attributes:
      named: The checkpoints that the file `checkpoint` names, oldest first; empty if it is lost.
      paths: The checkpoints to choose from: first the one that the file `checkpoint` names as the
        newest, then all others, from the newest to the oldest.
    """

    named: Sequence[str]
    paths: Sequence[str]


def listed(model_dir: str) -> Listed:
    """Lists checkpoints from the file `checkpoint`, and by name if it is lost or outdated."""
    try:
        state = tf.train.get_checkpoint_state(model_dir)
    except ValueError:  # The file is empty or has other content.
        state = None
    newest = [] if state is None else [state.model_checkpoint_path]
    others = [] if state is None else list(state.all_model_checkpoint_paths)
    files = tf.io.gfile.listdir(model_dir) if tf.io.gfile.isdir(model_dir) else []
    matches = filter(None, map(_FILE.fullmatch, files))
    found = [os.path.join(model_dir, match["name"]) for match in matches]
    paths: dict[str, str] = {}
    for path in (*newest, *sorted([*others, *found], key=_step, reverse=True)):
        paths.setdefault(os.path.abspath(path), path)
    return Listed(
        named=[*(path for path in others if path not in newest), *newest],
        paths=list(paths.values()),
    )


def latest(model_dir: str) -> str | None:
    """Returns the newest checkpoint's path, or None; it may be damaged."""
    return next(filter(exists, listed(model_dir).paths), None)


def _step(path: str) -> int:
    """Returns the step in a checkpoint's name, -1 if it has none."""
    match = _STEP.search(path)
    return int(match[1]) if match else -1


def required(model_dir: str) -> str:
    """Returns the newest checkpoint's path; ValueError if there is none."""
    path = latest(model_dir)
    if path is None:
        raise ValueError(f"Could not find trained model in model_dir: {model_dir}. Train first.")
    return path


def require_writable(model_dir: str) -> None:
    """Checks that a model_dir can be written, before training starts.

    A remote folder is made, but writing to it is not tested: the first checkpoint follows soon.

    Raises:
      ModelDirError: One line that names the folder and the cause.
      OSError: If the disk is full.
    """
    if is_remote(model_dir):
        tf.io.gfile.makedirs(model_dir)
        return
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
