"""Patterns on the names of variables that an optimizer treats differently."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import tensorflow.compat.v1 as v1


class NamePatterns:
    """Regular expressions that are searched for in the names of variables; None fits no variable.

    `argument` is the name of the optimizer's argument, for messages.

    Raises:
      TypeError: If it is not a list of strings.
      ValueError: If one is not a regular expression.
    """

    def __init__(self, argument: str, patterns: Sequence[str] | None) -> None:
        if isinstance(patterns, str) or not all(
            isinstance(pattern, str) for pattern in patterns or ()
        ):
            example = patterns if isinstance(patterns, str) else "bias"
            raise TypeError(
                f"{argument} must be a list of patterns, got {patterns!r}. Write [{example!r}]."
            )
        self._argument = argument
        self._patterns = [_compile(argument, pattern) for pattern in patterns or ()]
        self._reported: set[str] = set()

    def fit(self, variable: Any) -> bool:
        """Returns whether one of the patterns is found in a variable's name."""
        return any(pattern.search(name_of(variable)) for pattern in self._patterns)

    def report_unused(self, variables: Sequence[Any]) -> None:
        """Logs, once, each pattern that fits none of the variables."""
        names = [name_of(variable) for variable in variables]
        for pattern in self._patterns:
            text = pattern.pattern
            if text not in self._reported and not any(pattern.search(name) for name in names):
                self._reported.add(text)
                v1.logging.warning(
                    "%s: the pattern %r fits none of the %d variables (%s%s).",
                    self._argument,
                    text,
                    len(names),
                    ", ".join(names[:3]),
                    ", ..." if len(names) > 3 else "",
                )


def name_of(variable: Any) -> str:
    """Returns a variable's name as an operation: "layer/kernel", not "layer/kernel:0"."""
    return str(variable.name).partition(":")[0]


def _compile(argument: str, pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ValueError(
            f"{argument} has {pattern!r}, which is not a regular expression: {error}. Use one "
            f"that Python's re.search takes, such as {re.escape(pattern)!r}."
        ) from None
