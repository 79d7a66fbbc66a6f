"""The box at the end of a failed run: last output, worker, time, cause, and advice."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from tfdist.launch.failures.advice import advice
from tfdist.launch.failures.failure import (
    Failure,
    exit_code_text,
    joined_names,
    may_pass,
    signal_text,
)
from tfdist.launch.failures.startup_lines import is_startup_line
from tfdist.launch.screen.ansi import last_state, strip_escapes
from tfdist.launch.screen.error_excerpt import error_excerpt, error_text

_TAIL_ROWS = 10  # of a terminal, so that most boxes fit into 26
_WIDEST = 100
_NARROWEST = 30
_FRAME = len("|  |")
_LONGEST_LINE = 240  # characters of a line of output, which fill about three terminal lines
_BOLD, _ALERT = "bold", "bold red"

LONGEST_TAIL = 65_536  # characters of the end of a worker's output


@dataclass(frozen=True, kw_only=True)
class Aftermath:
    """The events after the failure: `killed` are the stopped workers that did not end in time.

    `can_restart` is whether the run could be started again with --max-restarts.
    """

    num_workers: int = 0
    stopped: Sequence[str] = ()
    killed: Sequence[str] = ()
    restarts: int = 0
    max_restarts: int = 0
    can_restart: bool = True


def failure_box(
    failure: Failure,
    aftermath: Aftermath,
    *,
    width: int,
) -> RenderableType:
    """Returns the box, which rich draws.

    It is as wide as the terminal, `width` columns, but 30 to 100 columns.
    """
    width = _width_in(width)
    tail = plain_lines(failure.log_tail)
    error = _error_of(failure)
    rows = {
        "where": f"{failure.host}, {f'process {failure.pid}' if failure.pid else 'not started'}",
        "when": f"{failure.at:%Y-%m-%d %H:%M:%S}, {failure.after_s:.1f} s after the start",
        "how": how_text(failure),
        "error": error,
        "step": "" if failure.step is None else str(failure.step),
        "others": others_text(aftermath),
        "restarts": "",
        "next": advice(failure),
    }
    if aftermath.max_restarts:
        rows["restarts"] = f"{aftermath.restarts} of {aftermath.max_restarts} were used"
    elif not rows["next"] and aftermath.can_restart and may_pass(failure):
        rows["next"] = "With --max-restarts N the run is started again from its last checkpoint."
    log = str(failure.log_path)
    # The path is not broken into two lines, because it could not be copied then.
    is_log_inside = len(log) <= width - len("| restarts   |")
    if is_log_inside:
        rows["log"] = log
    excerpt = error_excerpt(tail) if error and failure.kind != "caught" else ()
    printed = plain_lines(line for line in tail if not is_startup_line(line))
    room = width - _FRAME
    first = " first" if aftermath.num_workers > 1 else ""
    panel = Panel(
        Group(
            *_shown("its", excerpt or printed, room, is_all=not excerpt),
            *_shown("mpirun's", plain_lines(failure.mpirun_lines), room),
            _facts(rows),
        ),
        title=Text(f"{failure.name} failed{first}", _ALERT),
        border_style="red",
        width=width,
    )
    below = Text(f"log of {failure.name}: {log}", no_wrap=True, overflow="ignore")
    return panel if is_log_inside else Group(panel, below)


def whole_error(failure: Failure, *, width: int) -> str:
    """Returns the error that the box shows with all its lines; "" if there is none."""
    if failure.kind == "caught":
        return ""
    excerpt = error_excerpt(plain_lines(failure.log_tail))
    shown = _last_rows(excerpt, _width_in(width) - _FRAME)
    return _error_of(failure) if len(shown) == len(excerpt) else ""


def _width_in(width: int) -> int:
    return max(_NARROWEST, min(width, _WIDEST))


def _error_of(failure: Failure) -> str:
    if failure.kind == "caught":
        return failure.detail
    is_of_end = failure.kind in ("exited", "signal")
    return error_text(plain_lines(failure.log_tail)) if is_of_end else ""


def _facts(rows: Mapping[str, str]) -> Table:
    facts = Table.grid(padding=(0, 2, 0, 0))
    facts.add_column(no_wrap=True)
    facts.add_column(overflow="fold")
    for name, text in rows.items():
        if text:
            facts.add_row(Text(name, _BOLD), Text(text, _ALERT if name == "error" else ""))
    return facts


def _shown(whose: str, lines: Sequence[str], width: int, *, is_all: bool = True) -> list[Text]:
    """Returns the last lines that fill at most `_TAIL_ROWS` rows of this width, and a heading."""
    shown = _last_rows(lines, width)
    if not shown:
        return []
    number = f" {len(shown)} lines" if len(shown) > 1 else " line"
    heading = f"{whose} last{number}" if is_all else f"{whose} error, without frames of packages"
    return [Text(heading, _BOLD), *(Text(line, overflow="fold") for line in shown), Text()]


def _last_rows(lines: Sequence[str], width: int) -> list[str]:
    shown: list[str] = []
    num_rows = 0
    for line in reversed(lines):
        line = line[:_LONGEST_LINE]
        num_rows += max(1, -(-cell_len(line) // width))
        if num_rows > _TAIL_ROWS and shown:
            break
        shown.insert(0, line)
    return shown


def how_text(failure: Failure) -> str:
    """Returns the worker's exit code or signal, or the reason why it counts as failed."""
    if failure.kind == "exited" and failure.code is not None:
        how = f"exit code {exit_code_text(failure.code)}"
    elif failure.kind == "signal" and failure.code is not None:
        how = signal_text(failure.code)
    elif failure.kind == "ended early":
        how = "exit code 0, but too early"
    elif failure.kind == "caught":
        return "its training failed, and its program caught the error"
    else:
        how = failure.kind
    return f"{how}: {failure.detail}" if failure.detail else how


def others_text(aftermath: Aftermath) -> str:
    """Returns a text about the end of the other workers; "" if there were none."""
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


def log_tail(path: Path, first_byte: int = 0) -> tuple[str, ...]:
    """Returns the last lines of a log, up to 64 KiB; no lines if it cannot be read.

    It is read from `first_byte` on: an earlier start wrote what is before.
    """
    try:
        with path.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            begin = max(first_byte, size - LONGEST_TAIL)
            log.seek(begin)
            text = log.read().decode(errors="replace")
    except OSError:
        return ()
    return last_lines(text, is_cut=begin > first_byte)


def last_lines(text: str, *, is_cut: bool | None = None) -> tuple[str, ...]:
    """Returns the lines of the end of a worker's output.

    The text may begin inside a line if it `is_cut`, by default if it is `LONGEST_TAIL` characters
    long. That line is left out unless it is the only one.
    """
    is_cut = len(text) >= LONGEST_TAIL if is_cut is None else is_cut
    lines = text.split("\n")
    return plain_lines(lines[1:] if is_cut and len(lines) > 1 else lines)


def plain_lines(lines: Iterable[str]) -> tuple[str, ...]:
    """Removes escape sequences from lines, and empty lines at both ends."""
    plain = [strip_escapes(last_state(line.rstrip("\r\n"))).rstrip() for line in lines]
    filled = [number for number, line in enumerate(plain) if line]
    return tuple(plain[filled[0] : filled[-1] + 1]) if filled else ()
