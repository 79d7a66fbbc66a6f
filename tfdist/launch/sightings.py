"""How the workers look at a moment, as far as the progress line is concerned."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from tfdist.cluster.progress import Progress
from tfdist.launch.worker_state import WorkerState

Condition = Literal["running", "stopped", "silent", "ended"]

_SILENT_S = 5.0  # agents speak several times a second


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
