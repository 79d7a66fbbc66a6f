"""Pieces of the lines that a user reads: lists of names, values, the nearest name."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from typing import Any

__all__: list[str] = []  # internal


def did_you_mean(name: str, allowed: Iterable[str], meant: Mapping[str, str] = {}) -> str:
    """Returns ' Did you mean "x"?' for a name like an allowed one, in any case, else "".

    `meant` has the allowed name for each name that others use.
    """
    by_lower = {one.lower(): own for one, own in [*meant.items(), *((x, x) for x in allowed)]}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1)
    return f" Did you mean {json.dumps(by_lower[near[0]], ensure_ascii=False)}?" if near else ""


def listed(names: Iterable[str], word: str = "and") -> str:
    """Returns "a, b and c" for a sentence; long lists are shortened."""
    *most, last = list(names) or ["nothing"]
    if len(most) > 4:
        most = [*most[:4], "..."]
    return f"{', '.join(most)} {word} {last}" if most else last


def shown(value: Any) -> str:
    """Returns a value read from JSON as one short line of JSON."""
    text = json.dumps(value)
    return text if len(text) <= 70 else f"{text[:67]}..."


def printable(text: str, most: int = 300) -> str:
    r"""Returns text of unknown origin as one short line that is safe to print.

    Escape sequences, control characters, line breaks, and characters that change the writing
    direction are shown as Python writes them: "\x1b[2J".
    """
    shown = "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text[:most]
    )
    return shown if len(text) <= most else f"{shown[:most]}..."
