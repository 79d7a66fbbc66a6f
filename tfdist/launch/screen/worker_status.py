"""The status of each worker as text, and the throughput of the run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from tfdist.launch.workers.worker_state import WorkerSnapshot
from tfdist.process.progress_file import Progress

_WINDOW_S = 30.0
_FEWEST_SAMPLES = 5  # kept even if older than the window, because steps may take longer than it
_LATE_S = 10.0
_LATE_STEPS = 3
# Workers report at different times, twice a second: a lead that is younger is none.
_REPORTS_S = 2.0


@dataclass(frozen=True, kw_only=True)
class WorkerStatus:
    """The status of one worker.

    Attributes:
      word: "training", "stopped", "no step", …
      late_s: The seconds for which it has made no step; 0 if that is not unusual.
      is_trouble: True if the user should look at it.
    """

    name: str
    word: str
    late_s: int = 0
    step: int = -1
    is_trouble: bool = False

    def __str__(self) -> str:
        return f"{self.word} for {self.late_s} s" if self.late_s else self.word


def worker_statuses(
    now_s: float, recent: RecentProgress, workers: Mapping[int, WorkerSnapshot]
) -> tuple[WorkerStatus, ...]:
    """Returns the status of each worker.

    If several workers make no step, those that hold up the run are marked as late, and the others
    as "waiting".
    """
    late = recent.late(now_s, workers)
    is_held_up = any(w.condition in ("stopped", "silent") for w in workers.values()) or any(
        _holds_up(_progress(workers[index])) for index in late
    )
    before = [sample.step for sample in recent.samples if sample.seen_s <= now_s - _REPORTS_S]
    reached = max(before, default=-1)  # by the run, when all had reported
    statuses = []
    for index, worker in workers.items():
        progress = _progress(worker)
        # A program that reports nothing may be any program, and so may one that has trained.
        has_trained = progress.phase == "starting" and progress.step >= 0
        word = "running" if worker.progress is None or has_trained else progress.phase
        late_s, is_trouble = 0, False
        if worker.condition != "running":
            word, is_trouble = worker.condition, worker.condition in ("stopped", "silent")
        elif index in late and is_held_up and not _holds_up(progress):
            word = "waiting"
        elif index in late:
            word = "no input" if progress.waits_for_input else "no step"
            late_s, is_trouble = int(late[index]), True
        elif word == "training" and not worker.is_evaluator and 0 <= progress.step < reached - 1:
            word, is_trouble = "behind", True
        statuses.append(
            WorkerStatus(
                name=worker.name,
                word=word,
                late_s=late_s,
                step=progress.step,
                is_trouble=is_trouble,
            )
        )
    return tuple(statuses)


def _holds_up(progress: Progress) -> bool:
    """Returns whether the other workers wait for this one. In a step, each waits for all others."""
    return not progress.in_step or progress.waits_for_input


def _progress(worker: WorkerSnapshot) -> Progress:
    return worker.progress or Progress()


@dataclass(frozen=True, kw_only=True)
class StepSample:
    """A step of the run, and when it was first seen, on the clock of `RecentProgress.after`.

    `trained_s` are the seconds of training before it, `examples` counts all workers'.
    """

    seen_s: float
    trained_s: float
    step: int
    examples: float


@dataclass(frozen=True, kw_only=True)
class RecentProgress:
    """The recent history of a run.

    Speeds are of the training alone: the clock `trained_s` stands still while a worker
    starts, saves or evaluates, and the first step, which compiles, is left out.

    Attributes:
      samples: The last steps of the run, oldest first, from its second step on.
      status: Each worker's phase and step by index, and the time since which both have been the
        same.
      trained_s: The seconds for which all workers have been training.
      first_step: The first step that was seen; -1 before that.
    """

    samples: tuple[StepSample, ...] = ()
    status: Mapping[int, tuple[str, int, float]] = field(default_factory=dict)
    seen_s: float = math.inf
    trained_s: float = 0.0
    is_training: bool = False
    first_step: int = -1

    def after(self, now_s: float, workers: Mapping[int, WorkerSnapshot]) -> RecentProgress:
        """Returns the history with a snapshot of the workers, by index, at this time added."""
        status = {}
        for index, worker in workers.items():
            if worker.progress is not None:
                phase, step = worker.progress.phase, worker.progress.step
                before = self.status.get(index, ("", -1, now_s))
                status[index] = before if before[:2] == (phase, step) else (phase, step, now_s)
        progresses = training_progress(workers)
        is_training = all(progress.phase == "training" for progress in progresses)
        trained_s = self.trained_s
        if is_training or self.is_training:
            trained_s += max(0.0, now_s - self.seen_s)
        examples = sum(progress.examples for progress in progresses)
        first_step, samples = self._samples_with(
            StepSample(seen_s=now_s, trained_s=trained_s, step=run_step(workers), examples=examples)
        )
        return RecentProgress(
            samples=samples,
            status=status,
            seen_s=now_s,
            trained_s=trained_s,
            is_training=is_training,
            first_step=first_step,
        )

    def steps_per_s(self) -> float:
        """Returns the number of steps per second; NaN before it is known."""
        samples = self.samples
        return self._per_s(samples[-1].step - samples[0].step if samples else 0)

    def examples_per_s(self) -> float:
        """Returns the examples per second of all workers together; NaN before it is known."""
        samples = self.samples
        return self._per_s(samples[-1].examples - samples[0].examples if samples else 0.0)

    def late(self, now_s: float, workers: Mapping[int, WorkerSnapshot]) -> dict[int, float]:
        """Returns the workers that train but make no step, each with its seconds without one.

        A worker is late after `_LATE_S` seconds or `_LATE_STEPS` usual steps, the longer of both.
        """
        limit_s = max(_LATE_S, _LATE_STEPS * self._usual_s())
        return {
            index: now_s - since_s
            for index, (phase, _, since_s) in self.status.items()
            if phase == "training"
            and workers[index].condition == "running"
            and not workers[index].is_evaluator
            and now_s - since_s >= limit_s
        }

    def _samples_with(self, sample: StepSample) -> tuple[int, tuple[StepSample, ...]]:
        """Returns the first step and the samples after a snapshot."""
        last = self.samples[-1] if self.samples else None
        last_step = self.first_step if last is None else last.step
        has_lost_examples = last is not None and sample.examples < last.examples
        is_restarted = sample.step >= 0 and (sample.step < last_step or has_lost_examples)
        if self.first_step < 0 or is_restarted:
            return sample.step, ()
        if sample.step <= last_step or (last is not None and sample.trained_s <= last.trained_s):
            return self.first_step, self.samples
        kept = [*self.samples, sample]
        while len(kept) > _FEWEST_SAMPLES and kept[0].trained_s < sample.trained_s - _WINDOW_S:
            kept.pop(0)
        return self.first_step, tuple(kept)

    def _per_s(self, number: float) -> float:
        if len(self.samples) < 2:
            return math.nan
        first_s, last_s = self.samples[0].trained_s, self.samples[-1].trained_s
        # The time since the last step counts only once the next step is overdue. The speed then
        # falls with every second.
        is_overdue = self.trained_s - last_s > _LATE_STEPS * self._usual_s()
        return number / ((self.trained_s if is_overdue else last_s) - first_s)

    def _usual_s(self) -> float:
        """Returns the mean time between two samples in seconds; 0 before it is known."""
        if len(self.samples) < 2:
            return 0.0
        return (self.samples[-1].trained_s - self.samples[0].trained_s) / (len(self.samples) - 1)


def training_progress(workers: Mapping[int, WorkerSnapshot]) -> list[Progress]:
    """Returns the progress of the training workers that have reported any, in order."""
    return [
        worker.progress
        for worker in workers.values()
        if worker.progress is not None and not worker.is_evaluator
    ]


def run_step(workers: Mapping[int, WorkerSnapshot]) -> int:
    """Returns the step of the run; -1 if not known."""
    return max((progress.step for progress in training_progress(workers)), default=-1)
