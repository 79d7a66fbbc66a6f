"""A filter for the escape sequences and control characters in the workers' output."""

from __future__ import annotations

import re

_ESCAPE = re.compile(
    # A sequence with parameters, such as a colour or a cursor movement.
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    # A sequence with text, such as a window title. Without an end it takes the rest of the line.
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c|$)"
    r"|\x1b[ -/]*[0-Z\\^-~]"
)
_COLOR = re.compile(r"\x1b\[[0-9;:]*m")
_CONTROL = re.compile(
    # All control characters except tab, and ESC, which `strip_escapes` removes afterwards.
    r"[\x00-\x08\x0a-\x1a\x1c-\x1f\x7f-\x9f"
    # Line separators, and characters that change the writing direction.
    r"\u2028\u2029\u202a-\u202e\u2066-\u2069]"
)
_RESET = "\x1b[0m"


def strip_escapes(text: str, *, keep_colors: bool = False) -> str:
    """Returns a line without escape sequences and control characters.

    With `keep_colors` the sequences that set colours and weights stay, and are reset at the end.
    """
    if text.isprintable():
        return text
    stripped = _ESCAPE.sub(
        lambda found: found[0] if keep_colors and _COLOR.fullmatch(found[0]) else "", text
    )
    stripped = _CONTROL.sub("", stripped)
    if not keep_colors:
        return stripped.replace("\x1b", "")
    kept = re.sub(r"\x1b(?!\[[0-9;:]*m)", "", stripped)
    return kept + _RESET if "\x1b" in kept and not kept.endswith(_RESET) else kept


def last_state(line: str) -> str:
    """Returns a line's text after its last carriage return: the last state of a progress bar.

    States without visible text are left out.
    """
    if "\r" not in line:
        return line
    states = [state for state in line.split("\r") if strip_escapes(state).strip()]
    return states[-1] if states else ""
