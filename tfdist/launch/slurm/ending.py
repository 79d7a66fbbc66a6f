"""The end of a Slurm job's workers: the worker that caused it, and the job's exit code."""

from __future__ import annotations

import os
import signal
from collections.abc import Collection, Mapping
from datetime import datetime
from pathlib import Path

from tfdist.launch.failures.failure import Failure
from tfdist.launch.failures.first_failure import (
    Verdict,
    WorkerEnd,
    first_failure,
    has_failed,
    lost_without_a_cause,
    verdict_on,
)
from tfdist.launch.screen.error_excerpt import exception_line
from tfdist.launch.screen.failure_box import log_tail
from tfdist.launch.slurm.worker import JobFiles, WorkerRecord
from tfdist.process.exit_codes import LOST_WORKER, STOP_CODES

_LOST_A_DAEMON = 205  # The exit code of mpirun if it can no longer reach a node.
# Time without a new record after which a lost worker is given up. The workers that lost it have
# all exited by then.
_SILENCE_S = 5.0


def is_hopeless(records: Mapping[int, WorkerRecord], now_s: float, grace_s: float) -> bool:
    """Returns whether workers have failed and the others will not end by themselves.

    That is so `grace_s` seconds after the first failure, and before if a node does not answer.
    """
    failed = [record for record in records.values() if has_failed(record.code)]
    if failed and now_s - min(_end_s(record) for record in failed) > grace_s:
        return True
    is_lost = any(record.code == LOST_WORKER for record in failed)
    return is_lost and now_s - max(_end_s(record) for record in records.values()) > _SILENCE_S


def is_node_lost(records: Mapping[int, WorkerRecord], step_code: int) -> bool:
    """Returns whether mpirun or a worker reports that a node does not answer; not which one."""
    return step_code == _LOST_A_DAEMON or any(r.code == LOST_WORKER for r in records.values())


def ending(
    records: Mapping[int, WorkerRecord], step_code: int, unreachable: Collection[int] = ()
) -> Verdict:
    """Returns the verdict on one start of the workers, from their records.

    `step_code` is the exit code of `srun` or `mpirun`. Workers on nodes that do not answer are
    `unreachable`.
    """
    ends = [
        WorkerEnd(
            worker=worker,
            time_s=_end_s(record),
            # A worker on a node that does not answer may report that it has lost the others.
            exit_code=LOST_WORKER if worker in unreachable and record.code else record.code,
        )
        for worker, record in records.items()
        if record.ended_s is not None
    ]
    failed = [end for end in ends if has_failed(end.exit_code)]
    cause = first_failure(failed, others_are_ended=True)
    if cause is not None and step_code != _LOST_A_DAEMON:
        return verdict_on(cause)
    silent = [end for end in records if records[end].ended_s is None]
    if unreachable and failed:
        return _silent(min(unreachable), "its node does not answer")
    if silent and step_code != 0:
        first = min(silent, key=lambda worker: records[worker].started_s)
        return _silent(first, "no further message from it")
    if step_code == _LOST_A_DAEMON:
        return Verdict(exit_code=LOST_WORKER)
    if failed:
        return lost_without_a_cause(ends)
    stopped = [end for end in ends if end.exit_code in STOP_CODES]
    first_stopped = min(stopped, key=lambda end: end.time_s, default=None)
    return Verdict(exit_code=step_code if first_stopped is None else first_stopped.exit_code or 0)


def _silent(worker: int, detail: str) -> Verdict:
    return verdict_on(WorkerEnd(worker=worker, time_s=0.0, kind="silent", detail=detail))


def failure_of(
    end: Verdict,
    records: Mapping[int, WorkerRecord],
    files: JobFiles,
    first_bytes: Mapping[int, int] | None = None,
) -> Failure | None:
    """Returns the failure of the worker that failed first, or None if none failed.

    `first_bytes` has the place in each worker's log from which on it has the output of this start.
    """
    if end.worker is None:
        return None
    record = records[end.worker]
    # The time at which a silent worker stopped is unknown. The workers that lost it exited soon
    # after, so the last of their times is used.
    at_s = record.ended_s or max(_end_s(other) for other in records.values())
    log_path = files.log_path(end.worker)
    tail = log_tail(log_path, (first_bytes or {}).get(end.worker, 0))
    return Failure(
        name=f"worker {end.worker}",
        index=end.worker,
        host=record.host,
        pid=record.pid,
        kind=end.kind,
        code=None if record.code is None or end.kind == "silent" else abs(record.code),
        after_s=at_s - min(other.started_s for other in records.values()),
        at=datetime.fromtimestamp(at_s),
        step=None,
        log_tail=tail,
        log_path=Path(os.path.relpath(log_path)),
        detail=end.detail,
        exception=exception_line(tail) or "",
    )


def stopped_after(end: Verdict, records: Mapping[int, WorkerRecord]) -> dict[str, bool]:
    """Returns the workers that still ran after the first failure; True if they had to be killed."""
    if end.worker is None or end.kind == "silent":
        return {}
    first_s = _end_s(records[end.worker])
    return {
        f"worker {worker}": record.code in (None, -signal.SIGKILL)
        for worker, record in records.items()
        if worker != end.worker and (record.ended_s is None or record.ended_s > first_s)
    }


def _end_s(record: WorkerRecord) -> float:
    return record.ended_s if record.ended_s is not None else record.started_s
