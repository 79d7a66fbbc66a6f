"""Comparison of the workers' calls of `fit`, before they build a model or make a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from zlib import crc32

import tensorflow as tf

from tfdist.process.endings import OneLineError
from tfdist.strategies.reductions.engine import Collectives

# What `compile` got that must be equal on all workers, in words.
_COMPILED = {
    "loss": "loss",
    "loss_weights": "loss weights",
    "metrics": "metrics",
    "weighted_metrics": "weighted metrics",
}
_SHOWN_BYTES = 160  # of each


class FitsDifferError(OneLineError, ValueError):
    """The workers' calls of `fit` have other epochs or steps, or another loss or metrics."""


def compare_lengths(
    epochs: int, first_epoch: int, steps: int | None, collectives: Collectives
) -> None:
    """Checks that all workers' calls of `fit` have as many epochs and steps. A collective.

    Raises:
      FitsDifferError: On every worker, if they do not.
    """
    own = tf.constant([[epochs, first_epoch, -1 if steps is None else steps]], tf.int64)
    rows = collectives.gather(own, "fits", same_rows=True).numpy().tolist()
    names = ("epochs", "initial_epoch", "steps in an epoch")
    for name, values in zip(names, zip(*rows, strict=True), strict=True):
        known = {worker: value for worker, value in enumerate(values) if value >= 0}
        first = next(iter(known), 0)
        other = next((worker for worker, value in known.items() if value != known[first]), None)
        if other is not None:
            raise FitsDifferError(
                f"fit has {known[first]} {name} on worker {first} and {known[other]} on worker "
                f"{other}: it must have as many on all. Give all workers the same epochs, and "
                "datasets of equal lengths."
            )


def compare_compiled(model: Any, collectives: Collectives) -> None:
    """Checks that the models of all workers have the same loss and metrics. A collective.

    Raises:
      FitsDifferError: On every worker, if they do not.
    """
    config = getattr(getattr(model, "_compile_config", None), "config", {})
    own = [_described(config.get(name)).encode() for name in _COMPILED]
    # A checksum and the beginning of each: [parts, 1 + bytes].
    message = [[crc32(text), *text[:_SHOWN_BYTES].ljust(_SHOWN_BYTES)] for text in own]
    gathered = collectives.gather(tf.constant(message, tf.int64), "compiled", same_rows=True)
    rows = gathered.numpy().reshape([-1, len(own), 1 + _SHOWN_BYTES])  # [workers, ...]
    for part, words in enumerate(_COMPILED.values()):
        sums = rows[:, part, 0].tolist()
        other = next((worker for worker, one in enumerate(sums) if one != sums[0]), None)
        if other is not None:
            first, second = (
                bytes(rows[worker, part, 1:].tolist()).decode(errors="replace").strip() or "none"
                for worker in (0, other)
            )
            raise FitsDifferError(
                f"the model has the {words} {first} on worker 0 and {second} on worker {other}: "
                f"all workers must compile it with the same {words}."
            )


def _described(given: Any) -> str:
    """Returns what `compile` got as text, without what differs from process to process."""
    if given is None or isinstance(given, str):
        return given or ""
    if isinstance(given, Mapping):
        return ", ".join(f"{key}: {_described(given[key])}" for key in sorted(given, key=str))
    if isinstance(given, list | tuple):
        return ", ".join(map(_described, given))
    if isinstance(given, int | float):
        return f"{float(given):g}"
    return getattr(given, "__name__", type(given).__name__)
