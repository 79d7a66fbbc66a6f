"""When output is coloured, and in which colour each worker's lines are tagged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

ColorMode = Literal["auto", "always", "never"]

# Numbers of the 256-colour palette, apart from each other, and readable on black and on white.
_MANY = (33, 208, 35, 170, 37, 167, 99, 106, 204, 67, 178, 137)
# For terminals that know 16 colours only; without red, in which errors are shown.
_FEW = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
RED = "1;31"
YELLOW = "33"
BOLD = "1"


def is_colored(mode: ColorMode, *, is_terminal: bool, environ: Mapping[str, str]) -> bool:
    """Returns whether to write colours: what the user says counts more than what is usual.

    Args:
      mode: "auto" asks the variables NO_COLOR and FORCE_COLOR (if both are set, NO_COLOR counts),
        else it colours what goes to a terminal.
      is_terminal: Whether the output goes to a terminal.
      environ: Where the variables are looked up.
    """
    if mode != "auto":
        return mode == "always"
    if environ.get("NO_COLOR"):
        return False
    if environ.get("FORCE_COLOR"):
        return True
    return is_terminal and environ.get("TERM") != "dumb"


def worker_colors(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the colours of worker 0, 1, …, for `paint`; further workers begin again."""
    terminal = environ.get("TERM", "")
    if "COLORTERM" in environ or any(word in terminal for word in ("256", "kitty", "direct")):
        return tuple(f"38;5;{number}" for number in _MANY)
    return tuple(str(number) for number in _FEW)


def paint(text: str, color: str | None) -> str:
    """Returns the text in a colour, or as it is for None."""
    return text if color is None else f"\x1b[{color}m{text}\x1b[0m"
