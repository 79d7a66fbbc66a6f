"""Folders of exports: one a second, named by the time; only the newest are kept."""

from __future__ import annotations

import os
import re
import time
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

_ATTEMPTS = 10
_TIMESTAMP = re.compile(r"[0-9]{10}")


def timestamped(base: Any) -> str:
    """Names a folder in `base` by the seconds since 1970, which does not exist yet.

    If there is one, another process has just exported too: it waits for the next second.

    Raises:
      RuntimeError: If ten attempts failed.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        folder = os.path.join(tf.compat.as_str(os.fspath(base)), str(int(time.time())))
        if not tf.io.gfile.exists(folder):
            return folder
        time.sleep(1)
        v1.logging.warning(
            "Directory %s already exists; retrying (attempt %d/%d)", folder, attempt, _ATTEMPTS
        )
    raise RuntimeError(
        f"Failed to obtain a unique export directory name in {base!r} after {_ATTEMPTS} attempts."
    )


def temporary(folder: str) -> str:
    """Names the folder in which an export is written; TensorFlow Serving does not look at it."""
    base, name = os.path.split(folder)
    return os.path.join(base, f"temp-{name}")


def delete_all_but_newest(base: str, number: int | None) -> None:
    """Deletes the oldest exports in `base` until `number` are left; None keeps all.

    Only folders whose name is ten digits are counted and deleted.
    """
    if number is None:
        return
    names = [name.rstrip("/") for name in tf.io.gfile.listdir(base)]
    exports = sorted(name for name in names if _TIMESTAMP.fullmatch(name))
    for name in exports[:-number]:
        folder = os.path.join(base, name)
        try:
            tf.io.gfile.rmtree(folder)
        except tf.errors.NotFoundError as error:
            v1.logging.warning("Can not delete %s recursively: %s", folder, error)
