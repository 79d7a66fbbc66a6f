"""Notices: what the launcher prints about a run as a whole, beside the workers' output."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tfdist.launch.failures.failure import Failure
from tfdist.launch.options.run_options import RunOptions
from tfdist.launch.run.contact import strangers_text
from tfdist.launch.run.description import description
from tfdist.launch.run.interruptions import Interruptions
from tfdist.launch.screen.failure_box import Aftermath, failure_box
from tfdist.launch.screen.terminal import Terminal, TerminalClosedError
from tfdist.launch.workers.plan import Plan
from tfdist.launch.workers.worker_state import WorkerState


class Notices:
    """The launcher's own lines on the terminal.

    Args:
      log_dir: The folder of the workers' logs.
      on_closed: Called with the error if the reader of the output, or the terminal, is gone.

    Attributes:
      num_startup_lines: TensorFlow's lines that were not shown.
    """

    def __init__(
        self, terminal: Terminal, log_dir: Path, on_closed: Callable[[TerminalClosedError], None]
    ) -> None:
        self.num_startup_lines = 0
        self._terminal = terminal
        self._log_dir = log_dir
        self._on_closed = on_closed
        self._has_reported_strangers = False
        self._has_said_nobody_met = False

    def say(self, text: str) -> None:
        self._write(f"tfdist: {text}")

    def _write(self, text: str) -> None:
        with self.shown():
            self._terminal.write("err", f"{text}\n")

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Reports a terminal that is found to be gone in the block.

        With a full disk the run goes on, because the logs have its output as well.
        """
        try:
            yield
        except TerminalClosedError as error:
            if error.cause == "disk":
                self.say(f"{error}. The run goes on; the workers' logs are in {self._log_dir}")
            else:
                self._on_closed(error)

    def introduce(self, options: RunOptions, plan: Plan) -> None:
        """Describes the run before its first start."""
        verbosity, width = options.verbosity, self._terminal.width
        for text in description(options, plan, verbosity=verbosity, width=width):
            self._write(text)
        if verbosity > 0:
            self.say(f"logs are in {self._log_dir}")

    def show_box(self, failure: Failure, aftermath: Aftermath) -> None:
        box = failure_box(failure, aftermath, width=self._terminal.width)
        with self.shown():
            self._terminal.print(box)

    def note_stranger(self, sender: str) -> None:
        """Tells the user once that another process connects to the launcher's port."""
        if not self._has_reported_strangers:
            self._has_reported_strangers = True
            self.say(f"ignored a connection from {sender} that is not an agent of this run")

    def note_meeting(self, workers: Sequence[WorkerState], engine: str, *, has_ended: bool) -> None:
        """Tells the user once if the workers train, and have not met."""
        text = strangers_text(workers, engine, has_ended=has_ended)
        if text and (has_ended or not self._has_said_nobody_met):
            self._has_said_nobody_met = True
            self.say(text)

    def end(self, interruptions: Interruptions) -> None:
        """Prints the last lines of a run."""
        if self.num_startup_lines:
            self.say(
                f"TensorFlow printed {self.num_startup_lines} start-up lines; they are in the "
                "logs, --verbose shows them"
            )
        if interruptions.number:
            self.say(str(interruptions))
        self.say(f"logs are in {self._log_dir}")
