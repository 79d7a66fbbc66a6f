"""The worker that failed first, decided from plain records of how the workers ended.

The first failure in time is the cause of the others, except where a later end is known to follow
from another worker's:

- A worker that exits with `LOST_WORKER`, or whose last lines say so, has lost another one.
- Slurm and mpirun end the other workers (TERM, KILL) once one has failed.

If no worker failed by itself, one that ended while another still needed it is the cause.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tfdist.launch.failures.failure import FailureKind
from tfdist.process.endings import ENDED_INSIDE
from tfdist.process.exit_codes import LOST_WORKER, STOP_CODES, TOOK_TOO_LONG, shell_code

# What a worker prints that ends since the training of another one has failed.
_FAILED_TRAINING = re.compile(
    r"Lost worker (?P<worker>\d+) \(\S+\) while training: its training has failed: "
    r"(?P<error>.*)\. See its output for the cause"
)
# Errors of Horovod and of MultiWorkerMirroredStrategy that follow the end of another worker.
_LOST_SIGNS = ("Horovod has been shut down", "Collective ops is aborted by")


@dataclass(frozen=True, kw_only=True)
class WorkerEnd:
    """The end of one worker.

    Attributes:
      time_s: The time of its end, on a clock that all workers of the run share; of a silent
        worker, the time of its last message.
      exit_code: Its exit code, or minus the number of the signal that ended it; None if it did
        not end, or if an exception was raised in it.
      kind: The kind of its failure, if the exit code does not tell: "silent" or "stalled".
      error: The exception that was raised in it, or the last lines that it printed.
      name: Its name in messages, if that is not "worker" and its index.
    """

    worker: int
    time_s: float
    exit_code: int | None = None
    kind: FailureKind = "exited"
    detail: str = ""
    error: str = ""
    name: str = ""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The end of a run.

    Attributes:
      worker: The index of the worker that failed first; None if none has failed.
      detail: Further details of the failure as text; without `worker`, why the run has ended.
    """

    exit_code: int
    worker: int | None = None
    kind: FailureKind = "exited"
    detail: str = ""


def has_failed(exit_code: int | None) -> bool:
    """Returns whether a worker with this exit code has failed, by itself or not."""
    return exit_code not in (None, 0, *STOP_CODES)


def has_lost_another(end: WorkerEnd) -> bool:
    """Returns whether the worker ended because it lost another one."""
    return end.exit_code == LOST_WORKER or any(sign in end.error for sign in _LOST_SIGNS)


def failed_training(ends: Iterable[WorkerEnd]) -> Verdict | None:
    """Returns the verdict that blames a worker with a failed training, as the others were told.

    For a run in which no worker failed by itself: the program has caught the error. The records
    need what the workers printed last.
    """
    for end in ends:
        found = _FAILED_TRAINING.search(end.error) if has_lost_another(end) else None
        if found is not None and not found["error"].startswith(ENDED_INSIDE):
            worker = int(found["worker"])
            return Verdict(exit_code=1, worker=worker, kind="caught", detail=found["error"])
    return None


def first_failure(ends: Iterable[WorkerEnd], *, others_are_ended: bool = False) -> WorkerEnd | None:
    """Returns the end that is the cause of the others, or None if no worker failed by itself.

    Args:
      ends: The workers that have ended or are silent, in any order.
      others_are_ended: Whether Slurm or mpirun ends the other workers once one has failed. A
        later end by TERM or KILL is then no cause.
    """
    failed = [end for end in ends if end.exit_code is None or has_failed(end.exit_code)]
    first_s = min((end.time_s for end in failed), default=0.0)
    causes = [
        end
        for end in failed
        if not has_lost_another(end)
        and not (
            others_are_ended
            and end.time_s > first_s
            and end.exit_code in (-signal.SIGTERM, -signal.SIGKILL)
        )
    ]
    return min(causes, key=lambda end: end.time_s, default=None)


def verdict_on(end: WorkerEnd) -> Verdict:
    """Returns the verdict that blames the worker with this end."""
    code, kind = end.exit_code, end.kind
    if code is not None and code < 0:
        kind = "signal"
    return Verdict(
        exit_code=TOOK_TOO_LONG if code is None else shell_code(code),
        worker=end.worker,
        kind=kind,
        detail=end.detail,
    )


def lost_without_a_cause(ends: Sequence[WorkerEnd]) -> Verdict:
    """Returns the verdict on a run in which workers lost another one, and none failed by itself.

    A worker that ended with 0, or because it was asked to stop, before the first one lost another
    is the cause. One that ended with 0 is not if another one ended with 0 later: that one did not
    need it.

    At least one of the workers has failed.
    """
    lost = min((end for end in ends if has_failed(end.exit_code)), key=lambda end: end.time_s)
    is_done = any(end.exit_code == 0 and end.time_s > lost.time_s for end in ends)
    left = [
        end
        for end in ends
        if end.exit_code in (STOP_CODES if is_done else (0, *STOP_CODES))
        and end.time_s <= lost.time_s
    ]
    if not left:
        return verdict_on(lost)
    early = min(left, key=lambda end: end.time_s)
    return Verdict(
        exit_code=early.exit_code or 1,
        worker=early.worker,
        kind="exited" if early.exit_code else "ended early",
        detail=f"{lost.name or f'worker {lost.worker}'} still needed it",
    )
