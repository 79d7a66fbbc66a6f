"""The launcher's record of each worker's state, and its snapshot for the progress line."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from tfdist.launch.workers.channel import Channel
from tfdist.launch.workers.plan import WorkerPlan
from tfdist.process.progress_file import Progress

Condition = Literal["running", "importing", "stopped", "silent", "ended"]

_SILENT_S = 5.0  # agents send a message several times a second


@dataclass(kw_only=True)
class WorkerState:
    """The state of one worker, as last reported by its agent.

    Times are in seconds on the launcher's clock, an `ObservedClock`.

    Attributes:
      channel: The connection to its agent; None before the agent has connected.
      host: The machine's name, as reported by the machine itself.
      started_s: The time at which the launcher sent "start"; None before that.
      heard_s: The time of its agent's last message.
      progress: Its training progress; None if its program does not report any.
      quiet_s: Seconds since its progress last changed; None if its program does not report any.
      is_stopped: True if one of its processes was stopped (SIGSTOP).
      alone_s: Seconds for which it has had TensorFlow, and no contact with other workers.
      has_horovod: Whether it has loaded Horovod, as far as that was looked for.
      is_importing: Whether it probably still imports TensorFlow.
      code: Its exit code, or minus the number of the signal that ended it; None while it runs.
      is_gone: True once its agent has reported that no process of it is left.
      is_lost: True if its agent's connection closed before the agent reported "gone".
      absence_s: The seconds for which the launcher itself was suspended shortly before that,
        so that the agent presumed it dead; 0.0 if it was not.
      orphaned_s: The time at which the process that started its agent, mpirun for example, ended
        although the worker was not over.
      rank_environment: The environment of its rank, from a relay; None before, and without one.
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
    alone_s: float = 0.0
    has_horovod: bool = False
    is_importing: bool = False
    code: int | None = None
    ended_s: float | None = None
    is_gone: bool = False
    was_killed: bool = False
    is_lost: bool = False
    lost_s: float | None = None
    absence_s: float = 0.0
    orphaned_s: float | None = None
    rank_environment: Mapping[str, str] | None = None

    @property
    def is_over(self) -> bool:
        """True if its agent will send nothing more about it."""
        return self.is_gone or self.is_lost

    @property
    def step(self) -> int | None:
        """The number of weight updates that are done; None if not known."""
        return self.progress.step if self.progress is not None and self.progress.step >= 0 else None

    @property
    def has_trained(self) -> bool | None:
        """True once the run has completed a step; None if its program does not report any."""
        if self.progress is None or not self.plan.replicas:  # The evaluator makes no steps.
            return None
        return self.progress.step > 0 or not math.isnan(self.progress.loss)


@dataclass(frozen=True, kw_only=True)
class WorkerSnapshot:
    """A snapshot of one worker.

    Attributes:
      progress: The progress that it last reported; None before the first report.
      condition: "stopped" by a signal such as SIGSTOP, "silent" if its agent sends nothing,
        "ended", "importing" TensorFlow, else "running".
      is_evaluator: True for the evaluator, whose steps do not count as steps of the run.
    """

    name: str
    progress: Progress | None = None
    condition: Condition = "running"
    is_evaluator: bool = False


def worker_snapshots(workers: Iterable[WorkerState], now_s: float) -> dict[int, WorkerSnapshot]:
    """Returns a snapshot of each worker by index; `now_s` is the launcher's time."""
    return {
        worker.plan.index: WorkerSnapshot(
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
    if worker.is_stopped:
        return "stopped"
    return "importing" if worker.is_importing else "running"
