"""Findings of the checks, and their lines on a terminal, in a file or as JSON."""

from __future__ import annotations

import json
import shlex
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal, TextIO

from rich.console import Console
from rich.text import Text

_MARKS = {"good": "✓", "broken": "✗", "absent": "-"}
_ASCII_MARKS = {"good": "ok", "broken": "NO", "absent": "- "}
_STYLES = {"good": "", "broken": "bold red", "absent": "dim"}


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One line of the report.

    Attributes:
      state: "good"; "broken" if something needed does not work; "absent" for what is not needed.
      text: The result, in one line.
      fix: What to do, an exact command where there is one. Never empty if `state` is "broken".
    """

    state: Literal["good", "broken", "absent"]
    text: str
    fix: str = ""


Groups = Mapping[str, Sequence[Finding]]  # The findings of each check, by its heading.


def good(text: str) -> Finding:
    """Returns a line with a tick."""
    return Finding(state="good", text=text)


def broken(text: str, fix: str) -> Finding:
    """Returns a line that makes the exit code 1."""
    return Finding(state="broken", text=text, fix=fix)


def absent(text: str, fix: str = "") -> Finding:
    """Returns a line about something that is not needed."""
    return Finding(state="absent", text=text, fix=fix)


def pip_install(*requirements: str) -> str:
    """Returns the command that installs packages for this Python."""
    return "Run: " + shlex.join([sys.executable, "-m", "pip", "install", *requirements])


def num_broken(groups: Groups) -> int:
    """Returns how many things that are needed are broken; 0 on a healthy machine."""
    return sum(one.state == "broken" for findings in groups.values() for one in findings)


def print_group(name: str, findings: Sequence[Finding], console: Console) -> None:
    """Prints a heading and its lines."""
    console.print(Text(name, style="bold"))
    width = console.width if console.is_terminal else None
    for finding in findings:
        for line in lines_of(finding, console.encoding, width):
            console.print(Text(line, style=_STYLES[finding.state]), soft_wrap=True)


def lines_of(finding: Finding, encoding: str, width: int | None) -> list[str]:
    """Returns a finding as lines of at most `width` columns; None breaks no line."""
    mark = _marks(encoding)[finding.state]
    text = f"{finding.text.rstrip('.')}. {finding.fix}" if finding.fix else finding.text
    # Messages of other programs, and paths, may contain any character.
    text = " ".join(text.encode(encoding, "backslashreplace").decode(encoding).split())
    if width is None:
        return [f"  {mark} {text}"]
    return textwrap.wrap(
        text,
        width=max(width, 40),
        initial_indent=f"  {mark} ",
        subsequent_indent=" " * (3 + len(mark)),
        break_long_words=False,
        break_on_hyphens=False,
    )


def print_verdict(groups: Groups, seconds: float, console: Console) -> None:
    """Prints the last line: whether everything needed works."""
    text, number = f"All that is needed works ({seconds:.0f} s).", num_broken(groups)
    if number:
        things = "thing that is needed is" if number == 1 else "things that are needed are"
        mark = _marks(console.encoding)["broken"]
        text = f"{number} {things} broken ({seconds:.0f} s): see the lines with {mark}."
    console.print(Text(text, style="bold red" if number else "bold green"), soft_wrap=True)


def print_json(groups: Groups, seconds: float, target: TextIO) -> None:
    """Prints all findings as one JSON object."""
    lines = [
        {"group": name, **asdict(one)} for name, findings in groups.items() for one in findings
    ]
    healthy = num_broken(groups) == 0
    answer = {"healthy": healthy, "seconds": round(seconds, 1), "findings": lines}
    target.write(json.dumps(answer, indent=2) + "\n")
    target.flush()


def _marks(encoding: str) -> dict[str, str]:
    try:
        "".join(_MARKS.values()).encode(encoding)
    except (LookupError, UnicodeEncodeError):
        return _ASCII_MARKS
    return _MARKS
