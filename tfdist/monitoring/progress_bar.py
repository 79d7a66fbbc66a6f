"""A progress bar for a process without the launcher. Needs tqdm, imported when the hook is made."""

from __future__ import annotations

import sys
from typing import Any, TextIO

from tfdist.cluster.tasks import checked_count
from tfdist.monitoring.scalars import Chosen, ScalarsHook, load_package, own_worker_index
from tfdist.process.endings import is_launched


class ProgressBarHook(ScalarsHook):
    """Shows steps, speed, time left and scalars in one line on a terminal.

    Of several workers only worker 0 shows it. Under `tfdist run`, which has a progress line for all
    workers, nothing is shown.

    Args:
      max_steps: The global step at which training ends; None shows no percentage and no time left.
      scalars: As for `ScalarsHook`.
      every_n_steps: Steps between two updates.
      file: The stream; None is standard error.

    Raises:
      ImportError: If tqdm is not installed.
      ValueError: As in `ScalarsHook`.
    """

    def __init__(
        self,
        max_steps: int | None = None,
        scalars: Chosen = ("loss",),
        every_n_steps: int = 10,
        file: TextIO | None = None,
    ) -> None:
        super().__init__(scalars, every_n_steps)
        self._tqdm = load_package("ProgressBarHook", "tqdm", "tfdist[progress]")
        if max_steps is not None:
            checked_count("max_steps", max_steps)
        self._max_steps = max_steps
        self._file = file
        self._is_shown = own_worker_index() == 0 and not is_launched()
        self._bar: Any = None

    def start(self, step: int) -> None:
        self._close()  # A session that is recovered starts again.
        if self._is_shown:
            self._bar = self._tqdm.tqdm(
                total=self._max_steps, initial=step, unit=" steps", file=self._file or sys.stderr
            )

    def report(self, step: int, scalars: dict[str, float]) -> None:
        if self._bar is not None:
            self._bar.set_postfix(scalars, refresh=False)
            self._bar.update(step - self._bar.n)

    def end(self, session: Any) -> None:
        if self._bar is not None and session is not None:  # Not in `fit`.
            self._bar.update(self._counter.step - self._bar.n)
        self._close()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None
