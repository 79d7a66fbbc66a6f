"""Findings of `tfdist doctor`, and their lines on a terminal, in a file, or as JSON."""

from __future__ import annotations

import json
import shlex
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal, TextIO

from rich.console import Console
from rich.text import Text

State = Literal["good", "broken", "absent"]

_MARKS = {"good": "✓", "broken": "✗", "absent": "-"}
_ASCII_MARKS = {"good": "ok", "broken": "NO", "absent": "- "}
_STYLES = {"good": "green", "broken": "bold red", "absent": "dim"}


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


@dataclass(frozen=True, kw_only=True)
class Group:
    """Lines that belong together.

    Attributes:
      name: Their heading.
      findings: The lines.
    """

    name: str
    findings: Sequence[Finding]


def is_healthy(groups: Sequence[Group]) -> bool:
    """Says whether nothing that is needed is broken."""
    return not any(one.state == "broken" for group in groups for one in group.findings)


def print_group(group: Group, console: Console) -> None:
    """Prints a heading and its lines."""
    console.print(Text(group.name, style="bold"))
    for finding in group.findings:
        for line in lines_of(finding, console.encoding, _width(console)):
            console.print(Text(line, style=_style(finding)), soft_wrap=True)


def lines_of(finding: Finding, encoding: str, width: int | None) -> list[str]:
    """Returns a finding as the lines to print.

    Args:
      finding: What was found.
      encoding: That of the output; one without a tick gets "ok" in its place.
      width: The terminal's; None breaks no line.
    """
    mark = _marks(encoding)[finding.state]
    text = f"{finding.text.rstrip('.')}. {finding.mend}" if finding.mend else finding.text
    # What others wrote may hold anything: an error of the system's, a path.
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


def print_verdict(groups: Sequence[Group], seconds: float, console: Console) -> None:
    """Prints the last line: whether all is well."""
    num_broken = sum(one.state == "broken" for group in groups for one in group.findings)
    if num_broken == 0:
        text = f"All that is needed works ({seconds:.0f} s)."
        console.print(Text(text, style="bold green"), soft_wrap=True)
        return
    is_or_are = "thing that is needed is" if num_broken == 1 else "things that are needed are"
    text = f"{num_broken} {is_or_are} broken ({seconds:.0f} s): see the lines with "
    mark = _marks(console.encoding)["broken"]
    console.print(Text(f"{text}{mark}.", style="bold red"), soft_wrap=True)


def print_json(groups: Sequence[Group], seconds: float, target: TextIO) -> None:
    """Prints all as one JSON object."""
    findings = [{"group": group.name, **asdict(one)} for group in groups for one in group.findings]
    answer = {
        "healthy": is_healthy(groups),
        "seconds": round(seconds, 1),
        "findings": findings,
    }
    target.write(json.dumps(answer, indent=2) + "\n")
    target.flush()


def _marks(encoding: str) -> dict[str, str]:
    try:
        "".join(_MARKS.values()).encode(encoding)
    except (LookupError, UnicodeEncodeError):
        return _ASCII_MARKS
    return _MARKS


def _style(finding: Finding) -> str:
    return _STYLES[finding.state] if finding.state != "good" else ""


def _width(console: Console) -> int | None:
    return console.width if console.is_terminal else None
