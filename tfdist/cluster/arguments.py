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


def is_flag(value: Any) -> bool:
    """Returns whether a value is True or False, of Python or NumPy."""
    return type(value).__name__ in ("bool", "bool_")


def check_that(is_allowed: bool, name: str, value: Any, allowed: str) -> None:
    """Raises a ValueError for an argument's value that is not allowed; `allowed` says what is."""
    if not is_allowed:
        raise ValueError(f"{name} {allowed}, got {value!r}.")


def check_flag(name: str, value: Any) -> bool:
    """Returns a flag after checking that it is True or False."""
    check_that(is_flag(value), name, value, "must be True or False")
    return bool(value)


def check_whole(name: str, value: Any, *, least: int = 1) -> None:
    """Checks that a value is a whole number of at least `least`."""
    is_allowed = is_whole(value) and value >= least
    check_that(is_allowed, name, value, f"must be a whole number of at least {least}")


def check_number(
    name: str,
    value: Any,
    *,
    above: float | None = None,
    least: float = 0.0,
    below: float = math.inf,
) -> float:
    """Returns a number after checking its range; a ValueError if it is not finite or not in it.

    It must be above `above`, if that is not None, at least `least`, and below `below`.
    """
    is_within = is_number(value) and math.isfinite(value) and least <= value < below
    is_above = is_within and (above is None or value > above)
    bounds = [f"above {above:g}" if above is not None else f"at least {least:g}"]
    bounds += [f"below {below:g}"] if below < math.inf else []
    check_that(is_above, name, value, f"must be a finite number {' and '.join(bounds)}")
    return float(value)
