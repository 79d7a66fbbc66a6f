"""The state of a worker as the launcher knows it, and a snapshot of it for the progress line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from tfdist.launch.channel import Channel
from tfdist.launch.plan import WorkerPlan
from tfdist.process.progress_file import Progress

Condition = Literal["running", "stopped", "silent", "ended"]

_SILENT_S = 5.0  # agents speak several times a second


@dataclass(kw_only=True)
class WorkerState:
    """One worker, as its agent last told; times are the launcher's `time.monotonic`.

    Attributes:
      plan: What it is in the run.
      channel: To its agent; None before the agent has come.
      host: The machine's own name.
      pid: The worker's process.
      heard_s: When its agent last said something.
      progress: How far it is; None if its program does not tell.
      quiet_s: Seconds since its progress last changed; None if its program does not tell.
      is_stopped: Whether a process of it was stopped (SIGSTOP).
      code: How it ended: an exit code, or minus a signal's number; None while it runs.
      ended_s: When.
      is_gone: Whether nothing of it is left, as its agent says.
      was_killed: Whether it had to be killed.
      is_lost: Whether its agent went away without a word.
      lost_s: When.
      orphaned_s: When whoever started its agent, mpirun for example, ended before its time.
    """

    plan: WorkerPlan
    channel: Channel | None = None
    host: str = ""
    pid: int | None = None
    started_s: float | None = None
    heard_s: float | None = None
    progress: Progress | None = None
    quiet_s: float | None = None
    is_stopped: bool = False
    code: int | None = None
    ended_s: float | None = None
    is_gone: bool = False
    was_killed: bool = False
    is_lost: bool = False
    lost_s: float | None = None
    orphaned_s: float | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing more can be heard of it."""
        return self.is_gone or self.is_lost

    @property
    def step(self) -> int | None:
        """Weight updates that are done; None if not known."""
        return self.progress.step if self.progress is not None and self.progress.step >= 0 else None


@dataclass(frozen=True, kw_only=True)
class Sighting:
    """What is seen of a worker.

    Attributes:
      name: What messages call it: "worker 0", "evaluator".
      progress: What it has last written, None before that.
      condition: "stopped" by a signal like SIGSTOP, "silent" if nothing is heard from where it
        runs, "ended", else "running".
      is_evaluator: Whether it evaluates beside the training; its steps are not the run's.
    """

    name: str
    progress: Progress | None = None
    condition: Condition = "running"
    is_evaluator: bool = False


def sightings(workers: Iterable[WorkerState], now_s: float) -> dict[int, Sighting]:
    """Returns what is seen of each worker, by its index, at this time of `time.monotonic`."""
    return {
        worker.plan.index: Sighting(
            name=worker.plan.name,
            progress=worker.progress,
            condition=_condition(worker, now_s),
            is_evaluator=not worker.plan.replicas,
        )
        for worker in workers
    }


def _condition(worker: WorkerState, now_s: float) -> Condition:
    if worker.code is not None:
        return "ended"
    if worker.is_lost or (worker.heard_s is not None and now_s - worker.heard_s >= _SILENT_S):
        return "silent"
    return "stopped" if worker.is_stopped else "running"
