"""The verdict on a run: it continues, is complete, was stopped, or failed because of a worker.

`tfdist.launch.failures.first_failure` decides which failure is the cause. Here the launcher's
records of its workers become the plain ends on which it decides, and the time to wait for news is
chosen. A silent worker may have failed long before the silence is noticed, so its failure counts
from its last message.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from dataclasses import replace

from tfdist.launch.failures.first_failure import (
    Verdict,
    WorkerEnd,
    failed_training,
    first_failure,
    has_lost_another,
    lost_without_a_cause,
    verdict_on,
)
from tfdist.launch.workers.channel import SILENCE_S
from tfdist.launch.workers.worker_state import WorkerState
from tfdist.process.exit_codes import (
    LOST_WORKER,
    STOP_CODES,
    TOOK_TOO_LONG,
)

# A worker notices the loss of another one earlier than the launcher does. The launcher waits this
# long for the cause.
_PATIENCE_S = SILENCE_S + 5.0
_NEWS_S = 0.8  # the wait for news of an earlier failure
# The same after a SIGKILL, which is no consequence of another worker's failure: long enough for
# what another agent has sent already.
_NEWS_OF_A_KILL_S = 0.1


def judge(
    workers: Sequence[WorkerState],
    now_s: float,
    *,
    stall_timeout_s: float | None = None,
    grace_s: float = 30.0,
) -> Verdict | None:
    """Returns the verdict on the run, or None while it continues.

    The workers have started; the time is on the launcher's clock. `grace_s` is the time that the
    others have to end after one has saved and stopped.
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

    What the workers printed tells. Programs without a strategy of tfdist end with code 1 in both
    cases, sometimes first the worker that lost the other one. A program that catches the error of
    its training goes on, or ends with 0.

    `last_lines` returns what a worker printed last.
    """
    if verdict.worker is None or verdict.kind not in ("exited", "ended early"):
        return verdict
    ends = [
        replace(end, error="\n".join(last_lines(worker)))
        for worker in workers
        if (end := _end(worker)) is not None
    ]
    blamed = next(end for end in ends if end.worker == verdict.worker)
    cause = first_failure(ends)
    if cause is None:
        known = {worker.plan.index for worker in workers}
        caught = failed_training(ends)
        return verdict if caught is None or caught.worker not in known else caught
    return verdict_on(cause) if has_lost_another(blamed) else verdict


def _end(worker: WorkerState) -> WorkerEnd | None:
    if worker.code is None or worker.ended_s is None:
        return None
    return WorkerEnd(
        worker=worker.plan.index,
        name=worker.plan.name,
        time_s=worker.ended_s,
        exit_code=worker.code,
    )


def _silence(worker: WorkerState, now_s: float) -> WorkerEnd | None:
    """Returns the end of a worker that will report no exit code, or None if there is none."""
    if worker.lost_s is not None:
        time_s, detail = worker.lost_s, "its agent exited"
    elif worker.orphaned_s is not None:
        time_s, detail = worker.orphaned_s, "mpirun or ssh exited first"
    elif worker.heard_s is not None and now_s - worker.heard_s > SILENCE_S:
        # The failure counts from its last message, not from the moment it was noticed.
        time_s, detail = worker.heard_s, f"no message from it for {now_s - worker.heard_s:.0f} s"
    else:
        return None
    return WorkerEnd(worker=worker.plan.index, time_s=time_s, kind="silent", detail=detail)


def _failed_by_itself(workers: Sequence[WorkerState], now_s: float) -> Verdict | None:
    ends = [_end(worker) or _silence(worker, now_s) for worker in workers]
    cause = first_failure(end for end in ends if end is not None)
    if cause is None:
        return None
    # A message about an earlier failure may still arrive.
    is_open = any(worker.code is None and not worker.is_over for worker in workers)
    is_kill = cause.exit_code == -signal.SIGKILL
    if is_open and now_s - cause.time_s < (_NEWS_OF_A_KILL_S if is_kill else _NEWS_S):
        return None
    absence_s = next(other.absence_s for other in workers if other.plan.index == cause.worker)
    if cause.exit_code is None and absence_s:
        detail = (
            f"the launcher was suspended for {absence_s:.0f} s and its machine did not answer: "
            "presumed dead by the agents, which then stopped the workers"
        )
        return Verdict(exit_code=TOOK_TOO_LONG, detail=detail)
    return verdict_on(cause)


def _stalled(
    workers: Sequence[WorkerState], now_s: float, timeout_s: float | None
) -> Verdict | None:
    """Returns a verdict if the run has stalled, else None.

    A run stalls as a whole, because its workers wait for each other at every step. The blamed
    worker is one with a stopped process. If there is none, it is the worker that keeps the others
    waiting, else the one that has been quiet longest. If some workers report progress, a worker
    that has not reported any yet keeps the others waiting. If no worker reports steps, only a
    stopped process counts: a program of TensorFlow 2 may be about to make its first one.
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
        if not any(_reports_steps(worker) for worker in running) or any(
            worker not in quiet for worker in running
        ):
            return None
        suspects = [worker for worker in running if _keeps_waiting(worker)] or running
    blamed = max(suspects, key=lambda worker: quiet_s[worker.plan.index])
    detail = f"made no step for {quiet_s[blamed.plan.index]:.0f} s, "
    detail += (
        "process state: stopped (SIGSTOP)" if blamed.is_stopped else f"last seen {_doing(blamed)}"
    )
    return Verdict(exit_code=TOOK_TOO_LONG, worker=blamed.plan.index, kind="stalled", detail=detail)


def _quiet_s(worker: WorkerState, now_s: float) -> float:
    if worker.quiet_s is not None:
        return worker.quiet_s
    return 0.0 if worker.started_s is None else now_s - worker.started_s


def _reports_steps(worker: WorkerState) -> bool:
    progress = worker.progress
    return progress is not None and (not progress.is_own_loop or progress.counts_steps)


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
    one that saves as long as that takes.
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
    ends = [_end(worker) for worker in workers]
    return lost_without_a_cause([end for end in ends if end is not None])


def _ended(workers: Sequence[WorkerState], now_s: float, grace_s: float) -> Verdict | None:
    codes = [worker.code for worker in workers]
    requested = [worker for worker in workers if worker.code in STOP_CODES]
    if None not in codes:
        return Verdict(exit_code=requested[0].code or 0 if requested else 0)
    if not requested:
        return None
    # A signal from outside stopped this worker. The others should stop with it; those without
    # support for that never do.
    first = min(requested, key=lambda worker: worker.ended_s or 0.0)
    if first.ended_s is None or now_s - first.ended_s < grace_s:
        return None
    if any(_phase(worker) in ("stopping", "saving") for worker in workers if worker.code is None):
        return None  # It takes longer than the grace period, but it will leave as well.
    detail = "another process asked it to stop, and the other workers did not stop with it"
    return Verdict(exit_code=first.code or 0, worker=first.plan.index, detail=detail)
