"""The interruptions of a run and their cost, for its last line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tfdist.launch.workers.worker_state import WorkerState
from tfdist.process.progress_file import Progress


@dataclass(kw_only=True)
class Interruptions:
    """The interruptions of a run so far: failures, and stops to take a host in again.

    Attributes:
      lost_s: Seconds from each interruption to the next step.
      repeated_steps: Steps that were made again, as far as the programs report their steps: a loop
        of a program's own counts those of each start from 0.
    """

    number: int = 0
    lost_s: float = 0.0
    repeated_steps: int = 0
    is_own_loop: bool = False
    step: int = -1
    _since_s: float | None = None
    _restored_step: int = -1

    def begin(self, workers: Sequence[WorkerState], now_s: float) -> None:
        """Notes an interruption, with the workers as they were."""
        self.number += 1
        if self._since_s is None:  # Else there was no step since the one before.
            self._since_s = now_s
            self.step = max((worker.step or 0 for worker in workers), default=0)
        self._restored_step = -1

    def note(self, workers: Sequence[WorkerState], now_s: float) -> None:
        """Notes the first step after an interruption."""
        if self._since_s is None:
            return
        reports = [worker.progress for worker in workers if worker.progress is not None]
        made = [report.step for report in reports if _has_made_steps(report)]
        if not made:
            if self._restored_step < 0:
                self._restored_step = max((report.step for report in reports), default=-1)
            return
        # Reports come twice a second, so the first one may be of a later step.
        before = max(made) - 1 if self._restored_step < 0 else self._restored_step
        self.lost_s += now_s - self._since_s
        self.is_own_loop = any(report.counts_steps for report in reports)
        if not self.is_own_loop:
            self.repeated_steps += max(0, self.step - before)
        self._since_s = None

    def lost_until(self, now_s: float) -> float:
        """Returns the seconds lost until now, with those since an interruption that goes on."""
        return self.lost_s + (0.0 if self._since_s is None else now_s - self._since_s)

    def __str__(self) -> str:
        times = "once" if self.number == 1 else f"{self.number} times"
        if not self.lost_s:  # The program reports no steps.
            return f"interrupted {times}"
        if self.is_own_loop:
            return f"interrupted {times}: {self.lost_s:.1f} s until the next step"
        steps = f"{self.repeated_steps:,} step{'s' * (self.repeated_steps != 1)}"
        return f"interrupted {times}: {self.lost_s:.1f} s until the next step, {steps} made again"


def _has_made_steps(report: Progress) -> bool:
    """Returns whether a worker has made a step since its start."""
    return report.step > 0 if report.counts_steps else not math.isnan(report.loss)
