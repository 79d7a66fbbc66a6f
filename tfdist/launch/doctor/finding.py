"""What one line of `tfdist doctor` says."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from typing import Literal

State = Literal["good", "broken", "absent"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was looked at.

    Attributes:
      state: "good"; "broken" if something needed does not work; "absent" for what is missing or
        worth knowing, and not needed.
      text: What was found, in one line.
      mend: What to do about it, an exact command where there is one; always there if broken.
    """

    state: State
    text: str
    mend: str = ""


def good(text: str) -> Finding:
    """Returns a line with a tick."""
    return Finding(state="good", text=text)


def broken(text: str, mend: str) -> Finding:
    """Returns a line that makes the doctor's exit code 1."""
    return Finding(state="broken", text=text, mend=mend)


def absent(text: str, mend: str = "") -> Finding:
    """Returns a line about something that is not needed."""
    return Finding(state="absent", text=text, mend=mend)


def missing(text: str, mend: str, *, is_needed: bool) -> Finding:
    """Returns a line that is a failure only if what is missing is needed."""
    return broken(text, mend) if is_needed else absent(text, mend)


def pip_install(*requirements: str) -> str:
    """Returns the command that installs these for this Python."""
    return "Run: " + shlex.join([sys.executable, "-m", "pip", "install", *requirements])
