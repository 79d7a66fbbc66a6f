"""Child processes and calls that end within a limit, and leave no process behind."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from subprocess import DEVNULL, PIPE, Popen, TimeoutExpired
from typing import TypeVar

import psutil

from tfdist.launch.machine.descendants import send

_GRACE_S = 5.0
_POLL_S = 0.1
T = TypeVar("T")


class Stopped(Exception):
    """SIGINT or SIGTERM has arrived: the exception's argument is its number."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """The end of a child process, and its output."""

    exit_code: int | None  # Negative if a signal ended it; None if it was stopped at the limit.
    stdout: str = ""
    stderr: str = ""
    seconds: float

    @property
    def last_line(self) -> str:
        """The last line of standard error, or of standard output if that is empty."""
        lines = telling_lines(self.stderr.strip() or self.stdout)
        return lines[-1] if lines else "it said nothing"


class Children:
    """Child processes, one at a time.

    Signal handlers only record the signal, because an exception raised in a handler could
    arrive between the start of a child and the moment at which its process id is known.
    """

    def __init__(self) -> None:
        self._signal: int | None = None

    @contextlib.contextmanager
    def stopped_by_signals(self) -> Iterator[None]:
        """Within this context, SIGINT and SIGTERM end the child that runs."""
        numbers = (signal.SIGINT, signal.SIGTERM)
        handlers = {number: signal.signal(number, self._record) for number in numbers}
        try:
            yield
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def raise_if_stopped(self) -> None:
        if self._signal is not None:
            raise Stopped(self._signal)

    def run(self, command: Sequence[str], environ: Mapping[str, str], *, limit_s: float) -> Ended:
        """Runs a command for `limit_s` at most; a signal raises `Stopped` once it has ended."""
        start_s = time.monotonic()
        exit_code, output = None, (b"", b"")
        # In a session of its own: the terminal's Ctrl-C reaches this process alone.
        with Popen(
            command, env=environ, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, start_new_session=True
        ) as process:
            try:
                while exit_code is None and time.monotonic() - start_s < limit_s:
                    self.raise_if_stopped()
                    try:
                        output = process.communicate(timeout=_POLL_S)
                        exit_code = process.returncode
                    except TimeoutExpired as error:
                        output = (error.stdout or b"", error.stderr or b"")
            finally:
                _end(process)
        stdout, stderr = (text.decode(errors="replace") for text in output)
        seconds = time.monotonic() - start_s
        return Ended(exit_code=exit_code, stdout=stdout, stderr=stderr, seconds=seconds)

    def _record(self, number: int, frame: object) -> None:
        self._signal = self._signal or number


def answer_within(limit_s: float, function: Callable[[], T], otherwise: T) -> T:
    """Returns what a function returns, or `otherwise` if it takes longer than `limit_s`."""
    answers: list[T] = []
    thread = threading.Thread(target=lambda: answers.append(function()), daemon=True)
    thread.start()
    thread.join(limit_s)
    return answers[0] if answers else otherwise


def telling_lines(text: str) -> list[str]:
    """Returns the lines of a message without the dashes with which Open MPI frames it."""
    return [line.strip() for line in text.splitlines() if line.strip(" -\t")]


def _end(process: Popen[bytes]) -> None:
    """Ends a process that still runs and all its descendants: TERM first, then KILL."""
    if process.poll() is not None:
        return
    root = psutil.Process(process.pid)
    tree = root.children(recursive=True)
    process.terminate()  # mpirun and `tfdist run` then end their own children.
    try:
        process.communicate(timeout=_GRACE_S)
    except TimeoutExpired:
        tree += [*root.children(recursive=True), root]
    send(signal.SIGKILL, tree)
