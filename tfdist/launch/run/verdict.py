"""The verdict on a run: goes on, is done, was stopped, or has failed, and by whose fault.

The first failure in time is the cause of the others, with two exceptions: a worker that ended
because it lost another one is never the cause if any other can be, and a worker that nothing is
heard of may have failed long before that is noticed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tfdist.launch.channel import SILENCE_S
from tfdist.launch.failures import Failure, FailureKind
from tfdist.launch.options.run_options import RunOptions
from tfdist.launch.worker_state import WorkerState
from tfdist.process.exit_codes import (
    BAD_CONFIGURATION,
    LOST_WORKER,
    NO_SPACE,
    PORT_TAKEN,
    SAVED_AND_STOPPED,
)

_STOP_CODES = tuple(SAVED_AND_STOPPED.values())
# A worker that lost another one notices it earlier than we do.
_PATIENCE_S = SILENCE_S + 5.0
_NEWS_S = 0.8

_NOT_FOUND = (126, 127)  # a shell's codes for commands that it cannot run


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How a run has ended.

    Attributes:
      exit_code: What the launcher ends with.
      blamed: The worker that failed first; None if none has failed.
      kind: How it failed.
      detail: What else is known about that.
    """

    exit_code: int
    blamed: WorkerState | None = None
    kind: FailureKind = "exited"
    detail: str = ""


def judge(
    workers: Sequence[WorkerState],
    now_s: float,
    *,
    stall_timeout_s: float | None = None,
    grace_s: float = 30.0,
) -> Verdict | None:
    """Returns how the run has ended, or None while it goes on.

    Args:
      workers: All workers that have started.
      now_s: The time, on the launcher's clock.
      stall_timeout_s: How long the run may make no step; None: as long as it likes.
      grace_s: How long the others may take once a worker has saved and left.
    """
    return (
        _failed_by_itself(workers, now_s)
        or _stalled(workers, now_s, stall_timeout_s)
        or _lost_another(workers, now_s)
        or _ended(workers, now_s, grace_s)
    )


def exit_code_of(code: int) -> int:
    """Returns what a shell would make of it: 128 + n for the signal n."""
    return code if code >= 0 else 128 - code


def _failed_by_itself(workers: Sequence[WorkerState], now_s: float) -> Verdict | None:
    found: list[tuple[float, WorkerState, Verdict]] = []
    for worker in workers:
        if worker.ended_s is not None and worker.code is not None:
            if worker.code not in (0, LOST_WORKER, *_STOP_CODES):
                kind: FailureKind = "exited" if worker.code > 0 else "signal"
                verdict = Verdict(exit_code=exit_code_of(worker.code), blamed=worker, kind=kind)
                found.append((worker.ended_s, worker, verdict))
        elif worker.lost_s is not None:
            detail = "the process that kept it is gone"
            verdict = Verdict(exit_code=_SILENT, blamed=worker, kind="silent", detail=detail)
            found.append((worker.lost_s, worker, verdict))
        elif worker.orphaned_s is not None:
            detail = "what had started it, mpirun, has ended before it"
            verdict = Verdict(exit_code=_SILENT, blamed=worker, kind="silent", detail=detail)
            found.append((worker.orphaned_s, worker, verdict))
        elif worker.heard_s is not None and now_s - worker.heard_s > SILENCE_S:
            detail = f"nothing was heard of it for {now_s - worker.heard_s:.0f} s"
            verdict = Verdict(exit_code=_SILENT, blamed=worker, kind="silent", detail=detail)
            # It fell silent before anybody could notice.
            found.append((worker.heard_s, worker, verdict))
    if not found:
        return None
    failed_s, _, verdict = min(found, key=lambda one: one[0])
    # The news of an earlier failure may still be on its way.
    is_open = any(worker.code is None and not worker.is_over for worker in workers)
    return None if is_open and now_s - failed_s < _NEWS_S else verdict


_SILENT = 124  # as `timeout` has it for a command that took too long
_STALLED = 124


def _stalled(
    workers: Sequence[WorkerState], now_s: float, timeout_s: float | None
) -> Verdict | None:
    """A run stalls as a whole: its workers wait for each other at every step.

    To blame is a process that was stopped, else the worker that keeps the others waiting, else the
    one that fell quiet first. Where some tell how far they are, one that has told nothing yet keeps
    them waiting; where nobody does, nobody can say what a step is.
    """
    if timeout_s is None:
        return None
    quiet_s = {
        worker.plan.index: _quiet_s(worker, now_s) for worker in workers if worker.code is None
    }
    quiet = [worker for worker in workers if quiet_s.get(worker.plan.index, 0.0) >= timeout_s]
    suspects = [worker for worker in quiet if worker.is_stopped]
    if not suspects:
        running = [worker for worker in workers if worker.code is None and worker.plan.replicas]
        is_told = any(worker.progress is not None for worker in running)
        if not is_told or any(worker not in quiet for worker in running):
            return None
        suspects = [worker for worker in running if _keeps_waiting(worker)] or running
    blamed = max(suspects, key=lambda worker: quiet_s[worker.plan.index])
    detail = f"made no step for {quiet_s[blamed.plan.index]:.0f} s, "
    detail += (
        "process state: stopped (SIGSTOP)" if blamed.is_stopped else f"last seen {_doing(blamed)}"
    )
    return Verdict(exit_code=_STALLED, blamed=blamed, kind="stalled", detail=detail)


def _quiet_s(worker: WorkerState, now_s: float) -> float:
    if worker.quiet_s is not None:
        return worker.quiet_s
    return 0.0 if worker.started_s is None else now_s - worker.started_s


def _keeps_waiting(worker: WorkerState) -> bool:
    """Whether the others wait for this one, as far as it has told what it does."""
    progress = worker.progress
    if progress is None:
        return True
    return progress.phase != "waiting" and (not progress.in_step or progress.waits_for_input)


def _doing(worker: WorkerState) -> str:
    progress = worker.progress
    if progress is None:
        return "starting: it has not told how far it is"
    if progress.phase != "training":
        return progress.phase
    if progress.waits_for_input:
        return "in a step, waiting for its own input"
    if progress.in_step:
        return "in a step, waiting for the other workers"
    return "between two steps, in its own Python code"


def _lost_another(workers: Sequence[WorkerState], now_s: float) -> Verdict | None:
    """Somebody has lost another worker that we do not know to have failed, or not yet."""
    lost = [worker for worker in workers if worker.code == LOST_WORKER]
    if not lost:
        return None
    first = min(lost, key=lambda worker: worker.ended_s or 0.0)
    assert first.ended_s is not None
    if any(worker.code is None for worker in workers) and now_s - first.ended_s < _PATIENCE_S:
        return None
    left = [
        worker
        for worker in workers
        if worker.code in (0, *_STOP_CODES) and (worker.ended_s or 0.0) <= first.ended_s
    ]
    if left:
        early = min(left, key=lambda worker: worker.ended_s or 0.0)
        detail = f"{first.plan.name} still needed it"
        if early.code:
            return Verdict(exit_code=early.code, blamed=early, detail=detail)
        return Verdict(exit_code=1, blamed=early, kind="ended early", detail=detail)
    return Verdict(exit_code=LOST_WORKER, blamed=first)


def _ended(workers: Sequence[WorkerState], now_s: float, grace_s: float) -> Verdict | None:
    codes = [worker.code for worker in workers]
    asked = [worker for worker in workers if worker.code in _STOP_CODES]
    if None not in codes:
        return Verdict(exit_code=asked[0].code or 0 if asked else 0)
    if not asked:
        return None
    # Somebody stopped it from outside; the others leave with it, or do not know how to.
    first = min(asked, key=lambda worker: worker.ended_s or 0.0)
    if first.ended_s is None or now_s - first.ended_s < grace_s:
        return None
    detail = "somebody asked it to stop, and the others did not leave with it"
    return Verdict(exit_code=first.code or 0, blamed=first, detail=detail)


def why_no_restart(failure: Failure, restarts: int, max_restarts: int) -> str | None:
    """Returns why the workers are not started again, or None if they are.

    Args:
      failure: The first failure.
      restarts: How often they were started again before.
      max_restarts: How often they may be.
    """
    if failure.kind == "exited" and failure.code in (BAD_CONFIGURATION, *_NOT_FOUND):
        return "the configuration is bad, and would be so again"
    if failure.kind == "exited" and failure.code == NO_SPACE:
        return "there is no room for a checkpoint, and would be none again"
    if restarts >= max_restarts:
        return f"{restarts} of {max_restarts} restarts are used"
    return None


def is_new_port_needed(failure: Failure, options: RunOptions) -> bool:
    """Whether somebody took a port that we had chosen; the user's own choice is left to them."""
    return failure.code == PORT_TAKEN and failure.kind == "exited" and options.is_on_this_machine
