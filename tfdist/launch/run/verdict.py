"""The verdict on a run: it continues, is complete, was stopped, or failed because of a worker.

The first failure in time is taken as the cause of the others, with two exceptions. A worker that
ended because it lost another one is the cause only if no other worker can be. A silent worker may
have failed long before the silence is noticed, so its failure counts from its last message.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tfdist.launch.failures.failure import Failure, FailureKind, why_permanent
from tfdist.launch.options.run_options import RunOptions
from tfdist.launch.workers.channel import SILENCE_S
from tfdist.launch.workers.worker_state import WorkerState
from tfdist.process.exit_codes import (
    BAD_CONFIGURATION,
    CANNOT_RUN,
    LOST_WORKER,
    NO_SPACE,
    NOT_FOUND,
    PORT_TAKEN,
    STOP_CODES,
    TOOK_TOO_LONG,
    shell_code,
)

# A worker notices the loss of another one earlier than the launcher does. The launcher waits this
# long for the cause.
_PATIENCE_S = SILENCE_S + 5.0
_NEWS_S = 0.8  # the wait for news of an earlier failure
# Errors of Horovod and of MultiWorkerMirroredStrategy that follow the end of another worker.
_LOST_SIGNS = ("Horovod has been shut down", "Collective ops is aborted by")


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The end of a run.

    Attributes:
      exit_code: The launcher's exit code.
      blamed: The worker that failed first; None if none has failed.
      kind: The kind of its failure.
      detail: Further details of the failure as text; without `blamed`, why the run has ended.
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
    """Returns the verdict on the run, or None while it continues.

    Args:
      workers: All workers that have started.
      now_s: The time, on the launcher's clock.
      stall_timeout_s: The longest time without a step; None sets no limit.
      grace_s: The time that the other workers have to end after one has saved and stopped.
    """
    return (
        _failed_by_itself(workers, now_s)
        or _stalled(workers, now_s, stall_timeout_s)
        or _lost_another(workers, now_s)
        or _ended(workers, now_s, grace_s)
    )


def with_cause(
    verdict: Verdict,
    workers: Sequence[WorkerState],
    last_lines: Callable[[WorkerState], Sequence[str]],
) -> Verdict:
    """Returns a verdict that blames the worker that failed by itself, if another only lost it.

    Programs without a strategy of tfdist end with code 1 in both cases, sometimes first the worker
    that lost the other one: what it printed tells.

    Args:
      verdict: The verdict.
      workers: All workers that have started.
      last_lines: Returns the last lines that a worker printed.
    """
    if verdict.blamed is None or verdict.kind != "exited" or not _lost(last_lines(verdict.blamed)):
        return verdict
    failed = [
        worker
        for worker in workers
        if worker.code not in (None, 0, LOST_WORKER, *STOP_CODES) and not _lost(last_lines(worker))
    ]
    if not failed:
        return verdict
    first = min(failed, key=lambda worker: worker.ended_s or 0.0)
    assert first.code is not None
    kind: FailureKind = "exited" if first.code > 0 else "signal"
    return Verdict(exit_code=shell_code(first.code), blamed=first, kind=kind)


def _lost(lines: Sequence[str]) -> bool:
    return any(sign in line for line in lines for sign in _LOST_SIGNS)


def _failed_by_itself(workers: Sequence[WorkerState], now_s: float) -> Verdict | None:
    found: list[tuple[float, WorkerState, Verdict]] = []
    for worker in workers:
        if worker.ended_s is not None and worker.code is not None:
            if worker.code not in (0, LOST_WORKER, *STOP_CODES):
                kind: FailureKind = "exited" if worker.code > 0 else "signal"
                verdict = Verdict(exit_code=shell_code(worker.code), blamed=worker, kind=kind)
                found.append((worker.ended_s, worker, verdict))
        elif worker.lost_s is not None and worker.absence_s:
            detail = (
                f"the launcher was suspended for {worker.absence_s:.0f} s, and its machine did not "
                "answer: presumed dead by the agents, which then stopped the workers"
            )
            found.append((worker.lost_s, worker, Verdict(exit_code=TOOK_TOO_LONG, detail=detail)))
        elif worker.lost_s is not None:
            detail = "its agent exited"
            verdict = Verdict(exit_code=TOOK_TOO_LONG, blamed=worker, kind="silent", detail=detail)
            found.append((worker.lost_s, worker, verdict))
        elif worker.orphaned_s is not None:
            detail = "mpirun exited first"
            verdict = Verdict(exit_code=TOOK_TOO_LONG, blamed=worker, kind="silent", detail=detail)
            found.append((worker.orphaned_s, worker, verdict))
        elif worker.heard_s is not None and now_s - worker.heard_s > SILENCE_S:
            detail = f"no message from it for {now_s - worker.heard_s:.0f} s"
            verdict = Verdict(exit_code=TOOK_TOO_LONG, blamed=worker, kind="silent", detail=detail)
            # The failure counts from its last message, not from the moment it was noticed.
            found.append((worker.heard_s, worker, verdict))
    if not found:
        return None
    failed_s, _, verdict = min(found, key=lambda one: one[0])
    # A message about an earlier failure may still arrive.
    is_open = any(worker.code is None and not worker.is_over for worker in workers)
    return None if is_open and now_s - failed_s < _NEWS_S else verdict


def _stalled(
    workers: Sequence[WorkerState], now_s: float, timeout_s: float | None
) -> Verdict | None:
    """Returns a verdict if the run has stalled, else None.

    A run stalls as a whole, because its workers wait for each other at every step. The blamed
    worker is one with a stopped process. If there is none, it is the worker that keeps the others
    waiting, else the one that has been quiet longest. If some workers report progress, a worker
    that has not reported any yet keeps the others waiting. If no worker reports progress, steps
    are unknown and only a stopped process counts.
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
        is_reported = any(worker.progress is not None for worker in running)
        if not is_reported or any(worker not in quiet for worker in running):
            return None
        suspects = [worker for worker in running if _keeps_waiting(worker)] or running
    blamed = max(suspects, key=lambda worker: quiet_s[worker.plan.index])
    detail = f"made no step for {quiet_s[blamed.plan.index]:.0f} s, "
    detail += (
        "process state: stopped (SIGSTOP)" if blamed.is_stopped else f"last seen {_doing(blamed)}"
    )
    return Verdict(exit_code=TOOK_TOO_LONG, blamed=blamed, kind="stalled", detail=detail)


def _quiet_s(worker: WorkerState, now_s: float) -> float:
    if worker.quiet_s is not None:
        return worker.quiet_s
    return 0.0 if worker.started_s is None else now_s - worker.started_s


def _keeps_waiting(worker: WorkerState) -> bool:
    """Returns whether the other workers wait for this one, according to its progress reports."""
    progress = worker.progress
    if progress is None:
        return True
    return progress.phase != "waiting" and (not progress.in_step or progress.waits_for_input)


def _phase(worker: WorkerState) -> str:
    return "" if worker.progress is None else worker.progress.phase


def _doing(worker: WorkerState) -> str:
    progress = worker.progress
    if progress is None:
        return "starting: no progress yet"
    if progress.phase != "training":
        return progress.phase
    if progress.waits_for_input:
        return "in a step, waiting for its own input"
    if progress.in_step:
        return "in a step, waiting for the other workers"
    return "between two steps, in its own Python code"


def _lost_another(workers: Sequence[WorkerState], now_s: float) -> Verdict | None:
    """Returns a verdict if a worker has lost another one and no other failure is known.

    Waits up to `_PATIENCE_S` seconds for another failure while workers are still running, and for
    one that saves as long as that takes. A worker that ended with 0 is not to blame if another one
    ended with 0 later: that one did not need it.
    """
    lost = [worker for worker in workers if worker.code == LOST_WORKER]
    if not lost:
        return None
    first = min(lost, key=lambda worker: worker.ended_s or 0.0)
    assert first.ended_s is not None
    running = [worker for worker in workers if worker.code is None]
    if running and now_s - first.ended_s < _PATIENCE_S:
        return None
    if any(_phase(worker) == "saving" for worker in running):
        return None
    lost_s = first.ended_s
    is_done = any(worker.code == 0 and (worker.ended_s or 0.0) > lost_s for worker in workers)
    left = [
        worker
        for worker in workers
        if worker.code in (STOP_CODES if is_done else (0, *STOP_CODES))
        and (worker.ended_s or 0.0) <= lost_s
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
    asked = [worker for worker in workers if worker.code in STOP_CODES]
    if None not in codes:
        return Verdict(exit_code=asked[0].code or 0 if asked else 0)
    if not asked:
        return None
    # A signal from outside stopped this worker. The others should stop with it; those without
    # support for that never do.
    first = min(asked, key=lambda worker: worker.ended_s or 0.0)
    if first.ended_s is None or now_s - first.ended_s < grace_s:
        return None
    if any(_phase(worker) in ("stopping", "saving") for worker in workers if worker.code is None):
        return None  # It takes longer than the grace period, but it will leave as well.
    detail = "another process asked it to stop, and the other workers did not stop with it"
    return Verdict(exit_code=first.code or 0, blamed=first, detail=detail)


def why_no_restart(
    failure: Failure, restarts: int, max_restarts: int, earlier: Failure | None = None
) -> str | None:
    """Returns why the workers are not started again, or None if they are.

    Args:
      failure: The failure of the last start.
      restarts: The number of restarts so far.
      max_restarts: The largest number of restarts allowed.
      earlier: The failure of the start before; None at the first.
    """
    if failure.kind == "exited" and failure.code in (BAD_CONFIGURATION, CANNOT_RUN, NOT_FOUND):
        return "the configuration is invalid, so a restart would fail again"
    if failure.kind == "exited" and failure.code == NO_SPACE:
        return "there is no room for a checkpoint, so a restart would fail again"
    permanent = why_permanent(failure, earlier)
    if permanent:
        return permanent
    if restarts >= max_restarts:
        return f"{restarts} of {max_restarts} restarts are used"
    return None


def is_new_port_needed(failure: Failure, options: RunOptions) -> bool:
    """Returns whether another process took a port that the launcher had chosen.

    False for a run on several machines, where the user or the default sets the ports.
    """
    return failure.code == PORT_TAKEN and failure.kind == "exited" and options.is_on_this_machine
