"""The thread that writes files beside a training, one save at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as v1

from tfdist.process.progress_file import find_progress_file, in_phase
from tfdist.strategies.stop_signals import StopSignals

# A longer wait for the thread is reported.
_SILENT_S = 5.0


class BackgroundWrites:
    """The thread that writes, and its errors, which `on_error` gets; None raises them.

    The stop signals of this process wait for a write as well.
    """

    def __init__(
        self, signals: StopSignals, on_error: Callable[[BaseException], None] | None = None
    ) -> None:
        self._signals = signals
        self._on_error = on_error
        self._thread: threading.Thread | None = None
        self._what = ""
        self._error: BaseException | None = None

    def start(self, what: str, write: Callable[[], Any]) -> None:
        """Calls `write` in the thread. The write before it must have ended; see `wait`."""

        def run() -> None:
            try:
                write()
            except BaseException as error:
                self._error = error
            finally:
                _note_writing(-1)

        self._what = what
        _note_writing(1)
        self._thread = threading.Thread(target=run, name="save", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Returns when all files are written; then as `raise_error`."""
        if self._thread is not None:
            was_saving, self._signals.is_saving = self._signals.is_saving, True
            try:
                with in_phase("saving"):
                    self._thread.join(_SILENT_S)
                    if self._thread.is_alive():
                        v1.logging.info("Waiting until the %s is written.", self._what)
                        self._thread.join()
            finally:
                self._signals.is_saving = was_saving
            self._thread = None
        self.raise_error()

    def raise_error(self) -> None:
        """Raises the error of a failed write, or hands it to `on_error`, once."""
        error, self._error = self._error, None
        if error is None:
            return
        if self._on_error is None:
            raise error
        self._on_error(error)


_num_writing = 0  # Checkpoints and snapshots have a thread each.
_counting = threading.Lock()


def _note_writing(change: int) -> None:
    """Tells the launcher whether a thread writes: a worker that waits in a step may have work."""
    global _num_writing
    with _counting:
        _num_writing += change
        file = find_progress_file()
        if file is not None:
            file.note_writing(writes=_num_writing > 0)
