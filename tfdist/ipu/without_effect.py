"""The line in the log for options of the original that have no effect here."""

from __future__ import annotations

from collections.abc import Iterable

import tensorflow as tf


def log_without_effect(name: str, options: Iterable[str]) -> None:
    """Logs that options of a class or function have no effect; nothing where there are none."""
    if given := ", ".join(options):
        tf.compat.v1.logging.warning("%s: no effect without an IPU: %s.", name, given)
