"""The one box at the end of a run that failed: who, where, when, why, and what to do."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console, Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from tfdist.launch.advice import advice
from tfdist.launch.exit_statuses import exit_code_text, signal_text
from tfdist.launch.failures import Failure
from tfdist.launch.log_tail import plain_lines
from tfdist.launch.worker_names import joined_names

_TAIL_LINES = 20
_WIDEST = 100
_NARROWEST = 30
_LONGEST_LINE = 240  # of one line, some three on a terminal
_BOLD, _ALERT = "bold", "bold red"
_TRACEBACK = "Traceback (most recent call last):"
_FRAME = re.compile(r'  File ".*", line \d+')
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?::|$)")


@dataclass(frozen=True, kw_only=True)
class Aftermath:
    """What happened after the failure.

    Attributes:
      num_workers: How many processes the run has.
      stopped: Names of those that still ran, and were then stopped.
      killed: Names of those among them that did not leave in time, and were killed.
      restarts: How often the run was started again before this.
      max_restarts: How often it might have been.
    """

    num_workers: int
    stopped: Sequence[str] = ()
    killed: Sequence[str] = ()
    restarts: int = 0
    max_restarts: int = 0


def failure_box(
    failure: Failure,
    aftermath: Aftermath,
    *,
    width: int,
    is_colored: bool = False,
    is_unicode: bool = True,
) -> str:
    """Returns the box, without a newline at its end.

    Args:
      failure: The worker that failed first.
      aftermath: What happened then.
      width: How many columns the terminal has; the box takes at most 100.
      is_colored: Whether it has colours.
      is_unicode: Whether the terminal shows more than ASCII.
    """
    width = max(_NARROWEST, min(width, _WIDEST))
    tail = plain_lines(failure.log_tail)
    exception = exception_line(tail) if failure.kind in ("exited", "signal") else None
    rows = {
        "where": f"{failure.host}, {f'process {failure.pid}' if failure.pid else 'not started'}",
        "when": f"{failure.at:%Y-%m-%d %H:%M:%S}, {failure.after_s:.1f} s after the start",
        "how": how_text(failure),
        "error": exception or "",
        "step": "" if failure.step is None else str(failure.step),
        "others": others_text(aftermath),
        "restarts": _restarts_text(aftermath),
        "next": advice(failure) or _restart_advice(aftermath),
    }
    log = str(failure.log_path)
    # Broken into two lines the path could not be copied.
    is_log_inside = len(log) <= width - len("| restarts   |")
    if is_log_inside:
        rows["log"] = log
    first = " first" if aftermath.num_workers > 1 else ""
    panel = Panel(
        Group(_facts(rows), *_shown(tail[-_TAIL_LINES:], exception)),
        title=Text(f"{failure.name} failed{first}", _ALERT),
        box=box.ROUNDED if is_unicode else box.ASCII,
        border_style="red",
    )
    drawn = _drawn(panel, width, is_colored=is_colored)
    return drawn if is_log_inside else f"{drawn}\nlog of {failure.name}: {log}"


def _facts(rows: Mapping[str, str]) -> Table:
    facts = Table.grid(padding=(0, 2, 0, 0))
    facts.add_column(no_wrap=True)
    facts.add_column(overflow="fold")
    for name, text in rows.items():
        if text:
            facts.add_row(Text(name, _BOLD), Text(text, _ALERT if name == "error" else ""))
    return facts


def _shown(tail: Sequence[str], exception: str | None) -> list[Text]:
    if not tail:
        return []
    heading = f"its last {len(tail)} lines" if len(tail) > 1 else "its last line"
    return [
        Text(),
        Text(heading, _BOLD),
        *(
            Text(line[:_LONGEST_LINE], _ALERT if line == exception else "", overflow="fold")
            for line in tail
        ),
    ]


def _drawn(panel: Panel, width: int, *, is_colored: bool) -> str:
    file = io.StringIO()
    console = Console(
        file=file,
        width=width,
        color_system="standard" if is_colored else None,
        force_terminal=is_colored,
        no_color=not is_colored,
    )
    console.print(panel, highlight=False)
    return "\n".join(line.rstrip() for line in file.getvalue().rstrip("\n").split("\n"))


def how_text(failure: Failure) -> str:
    """Returns how the worker ended, or why it counts as failed."""
    if failure.kind == "exited" and failure.code is not None:
        how = f"exit code {exit_code_text(failure.code)}"
    elif failure.kind == "signal" and failure.code is not None:
        how = signal_text(failure.code)
    elif failure.kind == "ended early":
        how = "exit code 0, but too early"
    else:
        how = failure.kind
    return f"{how}: {failure.detail}" if failure.detail else how


def others_text(aftermath: Aftermath) -> str:
    """Returns what happened to the other workers; "" if there were none."""
    stopped, killed = aftermath.stopped, aftermath.killed
    if aftermath.num_workers == 1:
        return ""
    if not stopped:
        return "none of them ran any more"
    text = f"{joined_names(stopped)} {'were' if len(stopped) > 1 else 'was'} then stopped (TERM)"
    if len(stopped) == 1:
        return f"{text} and {'had' if killed else 'did not have'} to be killed"
    if len(killed) == len(stopped):
        return f"{text}; all of them had to be killed"
    return f"{text}; {joined_names(killed) if killed else 'none'} had to be killed"


def exception_line(lines: Sequence[str]) -> str | None:
    """Returns the last line of the last Python traceback, the one that names the exception."""
    found = None
    is_inside = False
    for line in lines:
        if line.endswith(_TRACEBACK):
            is_inside = True
        elif line.startswith("  "):
            is_inside = is_inside or bool(_FRAME.match(line))
        elif is_inside and line:
            is_inside = False
            found = line if _EXCEPTION.match(line) else found
    return found


def _restarts_text(aftermath: Aftermath) -> str:
    if not aftermath.max_restarts:
        return ""
    return f"{aftermath.restarts} of {aftermath.max_restarts} were used"


def _restart_advice(aftermath: Aftermath) -> str:
    if aftermath.max_restarts:
        return ""
    return "With --max-restarts N the run is started again from its last checkpoint."
