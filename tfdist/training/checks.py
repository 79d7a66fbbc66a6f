"""Checks of numbers and patterns that optimizers and schedules are made with."""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf


def check_number(
    name: str,
    value: Any,
    *,
    above: float | None = None,
    least: float = 0.0,
    below: float = math.inf,
) -> float:
    """Returns a number after checking its range.

    Args:
      name: The argument's name, for the message.
      value: The number given.
      above: The number must be larger than this, if not None.
      least: The number must be at least this.
      below: The number must be smaller than this.

    Raises:
      ValueError: If it is not a finite number in this range.
    """
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if hasattr(value, "item") and getattr(value, "shape", None) == ():  # A number of NumPy.
        value, is_number = value.item(), True
    is_within = is_number and math.isfinite(value) and least <= value < below
    if is_within and (above is None or value > above):
        return float(value)
    bounds = [f"above {above:g}" if above is not None else f"at least {least:g}"]
    bounds += [f"below {below:g}"] if below < math.inf else []
    raise ValueError(f"{name} must be a finite number {' and '.join(bounds)}, got {value!r}.")


def check_rate(value: Any, name: str = "learning_rate") -> Any:
    """Returns a learning rate after checking it; a tensor, variable or function is not read.

    Raises:
      ValueError: If it is a number that is negative or not finite.
    """
    if callable(value) or tf.is_tensor(value) or isinstance(value, tf.Variable):
        return value
    return check_number(name, value)
