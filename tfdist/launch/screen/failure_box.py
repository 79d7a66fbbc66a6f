"""The box at the end of a failed run: the worker, time, cause, last output, and advice."""

from __future__ import annotations

import io
import os
import re
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.console import Console, Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from tfdist.launch.failures import (
    Failure,
    exit_code_text,
    joined_names,
    signal_of_code,
    signal_text,
)
from tfdist.launch.screen.ansi import last_state, strip_escapes
from tfdist.process.exit_codes import BAD_CONFIGURATION, LOST_WORKER, NO_SPACE, PORT_TAKEN

_TAIL_LINES = 20
_WIDEST = 100
_NARROWEST = 30
_LONGEST_LINE = 240  # characters of a line of output, which fill about three terminal lines
_BOLD, _ALERT = "bold", "bold red"
_TRACEBACK = "Traceback (most recent call last):"
_FRAME = re.compile(r'  File ".*", line \d+')
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?::|$)")

_MEMORY = "Memory ran out: use smaller batches, fewer workers on a machine, or a larger machine."
_KILLED = (
    "If it was not killed on purpose, memory ran out (`dmesg` tells): use smaller batches, fewer "
    "workers on a machine, or a larger machine."
)
_PORT = (
    "The port was taken by another program: start again, or leave the choice of ports to tfdist."
)
_SPACE = "Free space where the model and the logs are written; the last whole checkpoint is kept."
# Patterns in the output of programs, with the advice for each. The first match is used.
_SIGNS = (
    (r"No space left on device|Disk quota exceeded", _SPACE),
    (
        r"MemoryError|Cannot allocate memory|std::bad_alloc|OOM when allocating"
        r"|ResourceExhaustedError|RESOURCE_EXHAUSTED|Unable to allocate",
        _MEMORY,
    ),
    (r"Address already in use|EADDRINUSE", _PORT),
    (
        r"ModuleNotFoundError|No module named",
        "Every worker runs in the environment of the launcher: install what is missing there, on "
        "every host.",
    ),
    (
        r"can't open file|No such file or directory",
        "Check the path; relative ones begin in the folder in which the launcher was started, on "
        "every host.",
    ),
    (r"Permission denied", "Check who may read and write that path."),
    (
        r"libcuda|CUDA_ERROR|cuInit|CUDNN_STATUS",
        "Check the GPUs and their drivers: `tfdist doctor` shows what TensorFlow finds.",
    ),
)
_NATIVE = "Native code crashed: start again with PYTHONFAULTHANDLER=1 to see the Python line."

_MOST_BYTES = 65_536


@dataclass(frozen=True, kw_only=True)
class Aftermath:
    """The events after the failure.

    Attributes:
      num_workers: The number of processes of the run.
      stopped: The names of the workers that were still running and were then stopped.
      killed: The names of those of them that did not end in time and were killed.
      restarts: The number of restarts before this failure.
      max_restarts: The largest number of restarts allowed.
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
      aftermath: The events after the failure.
      width: The number of columns of the terminal. The box is 30 to 100 columns wide.
      is_colored: If True, the box has colours.
      is_unicode: True if the terminal shows the box-drawing characters; else the box is ASCII.
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
    # The path is not broken into two lines, because it could not be copied then.
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
    """Returns the worker's exit code or signal, or the reason why it counts as failed."""
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


def exception_line(lines: Sequence[str]) -> str | None:
    """Returns the line of the last Python traceback that names the exception; None without one."""
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


def advice(failure: Failure) -> str:
    """Returns one or two sentences of advice for the user; "" if there is none."""
    if failure.kind == "stalled":
        return _stall_advice(failure)
    if failure.kind == "silent":
        return (
            f"Check that {failure.host} runs and that its network works; what it printed last may "
            "not have come through."
        )
    if failure.kind == "ended early":
        return (
            "Give every worker equally many steps: its input may have ended early, or its program "
            "left without training."
        )
    number = failure.code if failure.kind == "signal" else signal_of_code(failure.code or 0)
    return _code_advice(failure, number) or _sign_advice(failure) or _default_advice(number)


def _stall_advice(failure: Failure) -> str:
    longer = "Steps that may take so long need a longer --stall-timeout."
    if "SIGSTOP" in failure.detail:
        return f"The process was stopped: by a debugger, Ctrl-Z, or kill -STOP. {longer}"
    return f"While it hangs, `py-spy dump --pid` shows where. {longer}"


def _code_advice(failure: Failure, number: int | None) -> str:
    """Returns the advice for an exit code or signal that needs no look at the output."""
    if failure.kind == "exited" and failure.code == BAD_CONFIGURATION:
        return "Fix the error in the last lines; a wrong configuration is never tried again."
    if failure.kind == "exited" and failure.code == NO_SPACE:
        return _SPACE
    if failure.kind == "exited" and failure.code == 127:
        return "Check the command after `--`: is it spelled right, and on PATH on every host?"
    if failure.kind == "exited" and failure.code == 126:
        return "Make the command executable, or put its interpreter in front of it."
    if failure.kind == "exited" and failure.code == PORT_TAKEN:
        return _PORT
    if failure.kind == "exited" and failure.code == LOST_WORKER:
        return "No worker failed by itself: look at the network between the hosts, and at all logs."
    return _KILLED if number == signal.SIGKILL else ""


def _sign_advice(failure: Failure) -> str:
    text = "\n".join(failure.log_tail)
    return next((hint for pattern, hint in _SIGNS if re.search(pattern, text)), "")


def _default_advice(number: int | None) -> str:
    if number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE):
        return _NATIVE
    if number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        return "Another process ended it: a batch system, another user, or a limit of the machine."
    return ""


def log_tail(path: Path) -> tuple[str, ...]:
    """Returns the last lines of a log, up to 64 KiB; no lines if it cannot be read."""
    try:
        with path.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(0, size - _MOST_BYTES))
            text = log.read().decode(errors="replace")
    except OSError:
        return ()
    lines = text.split("\n")
    # The first line may be cut, so it is left out unless it is the only one.
    return plain_lines(lines[1:] if size > _MOST_BYTES and len(lines) > 1 else lines)


def plain_lines(lines: Iterable[str]) -> tuple[str, ...]:
    """Removes escape sequences from lines, and empty lines at both ends."""
    plain = [strip_escapes(last_state(line.rstrip("\r\n"))).rstrip() for line in lines]
    filled = [number for number, line in enumerate(plain) if line]
    return tuple(plain[filled[0] : filled[-1] + 1]) if filled else ()
