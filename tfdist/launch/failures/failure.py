"""The failure of a worker, and text for workers, exit codes and signals."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

from tfdist.process.endings import COMES_AGAIN
from tfdist.process.exit_codes import (
    BAD_CONFIGURATION,
    CANNOT_RUN,
    LOST_WORKER,
    NO_SPACE,
    NOT_FOUND,
    PORT_TAKEN,
    SAVED_AND_STOPPED,
)

FailureKind = Literal["exited", "signal", "stalled", "silent", "ended early", "caught"]

_SIGNAL_MEANINGS = {
    "SIGKILL": "killed, often: out of memory; see dmesg",
    "SIGSEGV": "a forbidden memory access, in native code",
    "SIGABRT": "aborted by native code, which usually prints why",
    "SIGBUS": "a broken memory access, often: /dev/shm or a disk is full",
    "SIGILL": "an instruction that this processor does not have",
    "SIGFPE": "a forbidden calculation in native code, like a division by zero",
    "SIGTERM": "another process asked it to stop",
    "SIGINT": "Ctrl-C",
    "SIGHUP": "its terminal was closed",
    "SIGQUIT": "Ctrl-\\",
    "SIGXCPU": "the limit of processor time was reached: ulimit -t",
    "SIGXFSZ": "the limit of the size of a file was reached: ulimit -f",
}
_CODE_MEANINGS = {
    0: "success",
    BAD_CONFIGURATION: "bad configuration",
    NO_SPACE: "no room for a checkpoint",
    CANNOT_RUN: "the command was found, but cannot be run",
    NOT_FOUND: "the command was not found",
    LOST_WORKER: "it lost another worker",
    PORT_TAKEN: "another program had taken its port",
    **{code: f"it saved and stopped on {name}" for name, code in SAVED_AND_STOPPED.items()},
}
_SHELL_SIGNAL_OFFSET = 128  # a shell or mpirun reports signal n as exit code 128 + n

_OF_SYNTAX = ("SyntaxError", "IndentationError", "TabError")
# A program that reports no steps, and has run for so long, has probably trained.
_TRAINED_S = 60.0

_PREFIX = "worker "
_MOST_LISTED = 8
_MOST_RUNS = 4


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The worker that caused the end of a run, with the details of its failure.

    Attributes:
      kind: "exited": ended with a nonzero exit code. "signal": ended by a signal. "stalled": made
        no step for too long. "silent": its host does not answer. "ended early": ended with exit
        code 0 while the other workers still needed it. "caught": its training failed, and its
        program went on, or ended with 0.
      code: The exit code, or the number of the signal that ended it; None if it did not end.
      after_s: Seconds from the start of the run until the failure.
      step: The number of weight updates that were done; None if not known.
      detail: Further details as text: "made no step for 60 s, process state: stopped
        (SIGSTOP)", "does not answer since 12:04:31".
      exception: The line that names the Python exception that ended it; "" without one.
      has_trained: Whether the run has completed a step; None if not known.
      mpirun_lines: The last lines that mpirun printed, if the worker did not say why it failed.
    """

    name: str
    index: int
    host: str
    pid: int | None
    kind: FailureKind
    code: int | None
    after_s: float
    at: datetime
    step: int | None
    log_tail: Sequence[str]
    log_path: Path
    detail: str = ""
    exception: str = ""
    has_trained: bool | None = None
    mpirun_lines: Sequence[str] = ()


def why_permanent(failure: Failure, earlier: Failure | None) -> str:
    """Returns why another start would fail in the same way; "" if it may help.

    `earlier` is the failure of the start before; None at the first.
    """
    if failure.kind != "exited" or failure.code in (LOST_WORKER, PORT_TAKEN):
        return ""
    if _kind_of(failure.exception) in _OF_SYNTAX:
        return "an error in the program's text, which a restart would repeat"
    if failure.exception and failure.has_trained is False:
        return "an exception before the first step, which a restart would repeat"
    if any(COMES_AGAIN in line for line in failure.log_tail):
        return "its numbers come from the last checkpoint, so a restart would end in the same way"
    if earlier is None or (failure.step is None and not failure.exception):
        return ""
    if _facts(failure) != _facts(earlier):
        return ""
    where = "" if failure.step is None else f" at step {failure.step}"
    return f"it failed twice in the same way{where}, so a restart would fail again"


def may_pass(failure: Failure) -> bool:
    """Returns whether another start, from the last checkpoint, may go beyond this failure."""
    has_begun = failure.has_trained or failure.after_s >= _TRAINED_S
    return not why_permanent(failure, None) and (has_begun or not failure.exception)


def _kind_of(exception: str) -> str:
    """Returns the class of an exception's line, like "KeyError", without its module."""
    return exception.partition(":")[0].rpartition(".")[2]


def _facts(failure: Failure) -> tuple[object, ...]:
    return failure.kind, failure.code, failure.step, failure.exception


def signal_name(number: int) -> str:
    """Returns a signal's name, like "SIGKILL"; "signal 35" if it has none."""
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have no name
        return f"signal {number}"


def signal_text(number: int) -> str:
    """Returns a signal's name, number and meaning: "signal SIGKILL (9): killed, …"."""
    name = signal_name(number)
    shown = name if name.startswith("signal ") else f"signal {name} ({number})"
    meaning = _SIGNAL_MEANINGS.get(name)
    return f"{shown}: {meaning}" if meaning else shown


def exit_code_text(code: int) -> str:
    """Returns an exit code and its meaning: "127: the command was not found"."""
    meaning = _CODE_MEANINGS.get(code)
    if meaning is not None:
        return f"{code}: {meaning}"
    number = signal_of_code(code)
    return str(code) if number is None else f"{code} = 128 + {number}, {signal_text(number)}"


def signal_of_code(code: int) -> int | None:
    """Returns the signal that a shell reports by this exit code, or None if there is none."""
    number = code - _SHELL_SIGNAL_OFFSET
    return number if number in signal.valid_signals() and code not in _CODE_MEANINGS else None


def worker_tag(name: str) -> str:
    """Returns the short name of a worker: "0" for "worker 0", "evaluator" for the evaluator."""
    return name.removeprefix(_PREFIX)


def names_text(workers: Sequence[int]) -> str:
    """Returns "worker 1", "workers 1 and 2" or, for many, "workers 0-11,13-63"."""
    if len(workers) > _MOST_LISTED:
        return f"workers {numbers_text(workers)}"
    *most, last = [str(worker) for worker in workers]
    return f"workers {', '.join(most)} and {last}" if most else f"worker {last}"


def joined_names(names: Iterable[str]) -> str:
    """Joins names for use in a sentence: "workers 0 and 2 and the evaluator"."""
    numbers, others = [], []
    for name in names:
        if name.startswith(_PREFIX):
            numbers.append(int(worker_tag(name)))
        else:
            others.append(f"the {name}")
    return " and ".join([*([names_text(numbers)] if numbers else []), *others])


def numbers_text(numbers: Iterable[int]) -> str:
    """Returns sorted numbers with ranges: "0-3,8". More than four ranges are shortened."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    if len(texts) > _MOST_RUNS:
        texts = [*texts[:2], "...", texts[-1]]
    return ",".join(texts)
