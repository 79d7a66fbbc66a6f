"""Errors about a full disk, in one line, and the question whether there is room for a file."""

from __future__ import annotations

import errno
import math
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import tensorflow as tf

from tfdist.process.endings import OneLineError
from tfdist.process.exit_codes import NO_SPACE
from tfdist.strategies.saving.checkpoint_files import ModelDirError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class CheckpointSpaceError(OneLineError, OSError):
    """Raised if there is no disk space for a checkpoint; older ones are unchanged."""

    exit_code: ClassVar[int] = NO_SPACE


def is_remote(path: str) -> bool:
    """Returns whether only TensorFlow can access a path, such as gs://bucket/model."""
    return "://" in path


@contextmanager
def full_disk_named(
    folder: str, what: str = "what is written", num_bytes: int = 0, kind: str = "checkpoint"
) -> Iterator[None]:
    """Turns an error about a full disk in the `with` block into one line.

    `what` names the written data in it; `num_bytes` is their size, 0 if that is not known. They are
    an Estimator's "checkpoint", in its model_dir, or a "backup" or a "model" in another folder.

    Raises:
      CheckpointSpaceError: If there is no disk space, or a file would exceed the allowed size.
    """
    try:
        yield
    except (tf.errors.OpError, OSError) as error:
        refuse_full_disk(error, folder, what, num_bytes, kind)
        raise


def refuse_full_disk(
    error: tf.errors.OpError | OSError,
    folder: str,
    what: str = "what is written",
    num_bytes: int = 0,
    kind: str = "checkpoint",
) -> None:
    """Raises a `CheckpointSpaceError` for an error about a full disk; see `full_disk_named`."""
    if isinstance(error, CheckpointSpaceError) or is_remote(folder):
        return
    number = next((n for n in _FULL if _is_about(error, n)), None)
    if number is None:
        return
    needs = f"needs {num_bytes:,} bytes" if num_bytes else "needs more"
    free = shutil.disk_usage(_existing(folder)).free
    fix = "Raise the limit (ulimit -f)" if number == errno.EFBIG else "Make room there"
    where = "model_dir" if kind == "checkpoint" else "folder"
    raise CheckpointSpaceError(
        f"{os.strerror(number)}: {what} {needs} in {folder}, where {free:,} are free. {fix}, or "
        f"use another {where}. Older {kind}s are as they were."
    ) from error


def _existing(folder: str) -> str:
    """Returns the folder or, if it does not exist, the nearest parent that exists."""
    while not os.path.isdir(folder):
        folder = os.path.dirname(os.path.abspath(folder))
    return folder


def _is_about(error: tf.errors.OpError | OSError, number: int) -> bool:
    """Returns whether an error is, or quotes the text of, the system error with this number."""
    if isinstance(error, OSError):
        return error.errno == number
    return os.strerror(number) in error.message


def require_permission(folder: str) -> None:
    """Checks that a folder, or the nearest one above it that exists, may be written.

    Raises:
      ModelDirError: If it may not.
    """
    existing = folder if is_remote(folder) else _existing(folder)
    if not (is_remote(folder) or os.access(existing, os.W_OK)):
        raise ModelDirError(
            f"{folder!r} cannot be written: there is no permission to write to {existing}, or it "
            "is mounted read-only. Choose another folder, or change its owner or mode."
        )


def bytes_of(variables: Sequence[Any]) -> int:
    """Returns the bytes of the values of variables."""
    return sum(math.prod(v.shape) * tf.as_dtype(v.dtype).size for v in variables)


def require_room(folder: str, num_bytes: int) -> None:
    """Checks that a file of this size may be written to an existing folder, before it is.

    HDF5's library ends the process where it cannot close a file on a full disk.

    Raises:
      OSError: If there is no room.
    """
    if is_remote(folder) or not num_bytes:
        return
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, num_bytes)
    except OSError as error:
        if error.errno in _FULL:  # Others are those of file systems that cannot tell.
            raise
