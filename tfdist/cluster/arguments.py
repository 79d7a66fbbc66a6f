"""Checks of the arguments of constructors: numbers, whole numbers and flags.

Each raises a ValueError with the argument's name, what is allowed, and the value found.
"""

from __future__ import annotations

import math
from typing import Any


def is_number(value: Any) -> bool:
    """Returns whether a value is a number, of Python or NumPy, and neither a bool nor NaN."""
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        value = value.item()
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == value


def is_whole(value: Any) -> bool:
    """Returns whether a value is a whole number; 1e3 is one, as old programs write it."""
    return is_number(value) and math.isfinite(value) and value == int(value)


def check_flag(name: str, value: Any) -> bool:
    """Returns a flag after checking that it is True or False."""
    if type(value).__name__ not in ("bool", "bool_"):  # NumPy's, too.
        raise ValueError(f"{name} must be True or False, got {value!r}.")
    return bool(value)


def check_whole(name: str, value: Any, *, least: int = 1) -> None:
    """Checks that a value is a whole number of at least `least`."""
    if not is_whole(value) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}.")


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
    is_within = is_number(value) and math.isfinite(value) and least <= value < below
    if is_within and (above is None or value > above):
        return float(value)
    bounds = [f"above {above:g}" if above is not None else f"at least {least:g}"]
    bounds += [f"below {below:g}"] if below < math.inf else []
    raise ValueError(f"{name} must be a finite number {' and '.join(bounds)}, got {value!r}.")
