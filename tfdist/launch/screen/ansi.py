"""ANSI escape sequences: colours that are written, and sequences that are filtered out."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tfdist.launch.options.option_parser import ColorMode

# Numbers of the 256-colour palette, apart from each other, and readable on black and on white.
_MANY = (33, 208, 35, 170, 37, 167, 99, 106, 204, 67, 178, 137)
# For terminals that know 16 colours only; without red, in which errors are shown.
_FEW = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
RED = "1;31"
YELLOW = "33"
BOLD = "1"

_ESCAPE = re.compile(
    # A command with parameters, like a colour or a cursor movement.
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    # A command with a text, like a window title; unfinished, it takes the rest of the line.
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c|$)"
    r"|\x1b[ -/]*[0-Z\\^-~]"
)
_COLOR = re.compile(r"\x1b\[[0-9;:]*m")
_CONTROL = re.compile(
    # All but tab, and ESC, which is looked at after the escape sequences.
    r"[\x00-\x08\x0a-\x1a\x1c-\x1f\x7f-\x9f"
    # Line separators, and what turns the direction of writing around.
    r"\u2028\u2029\u202a-\u202e\u2066-\u2069]"
)
_RESET = "\x1b[0m"


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


def strip_escapes(text: str, *, keep_colors: bool = False) -> str:
    """Returns a line without escape sequences and control characters.

    Args:
      text: One line.
      keep_colors: Leaves the sequences that set colours and weights, and ends them at the end of
        the line.
    """
    if text.isprintable():
        return text
    stripped = _ESCAPE.sub(_color_of if keep_colors else "", text)
    stripped = _CONTROL.sub("", stripped)
    if not keep_colors:
        return stripped.replace("\x1b", "")
    kept = re.sub(r"\x1b(?!\[[0-9;:]*m)", "", stripped)
    return kept + _RESET if "\x1b" in kept and not kept.endswith(_RESET) else kept


def last_state(line: str) -> str:
    """Returns what a line shows after its carriage returns: a progress bar's last state."""
    if "\r" not in line:
        return line
    states = [state for state in line.split("\r") if strip_escapes(state).strip()]
    return states[-1] if states else ""


def _color_of(match: re.Match[str]) -> str:
    return match[0] if _COLOR.fullmatch(match[0]) else ""
