"""The end of a Slurm job's workers: the worker that caused it, and the job's exit code."""

from __future__ import annotations

import os
import signal
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from tfdist.launch.failures.failure import Failure, FailureKind
from tfdist.launch.screen.failure_box import exception_line, log_tail
from tfdist.launch.slurm.worker import JobFiles, Record
from tfdist.process.exit_codes import LOST_WORKER, STOP_CODES, TOOK_TOO_LONG, shell_code

_LOST_A_DAEMON = 205  # The exit code of mpirun if it can no longer reach a node.
# Time without a new record after which a lost worker is given up. The workers that lost it have
# all exited by then.
_SILENCE_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Ending:
    """The result of one start of the workers.

    Attributes:
      exit_code: The exit code of the job.
      worker: The worker that failed first, or None if none failed.
      kind: The kind of its failure.
      detail: Further information about the failure.
    """

    exit_code: int
    worker: int | None = None
    kind: FailureKind = "exited"
    detail: str = ""


def is_hopeless(records: Mapping[int, Record], now_s: float, grace_s: float) -> bool:
    """Returns True if workers have failed and the others will not end by themselves.

    This is the case if a node does not answer.

    Args:
      records: The records of the workers that have started.
      now_s: The current time, in seconds since 1970.
      grace_s: Time in seconds that the other workers have to end after one has failed.
    """
    failed = {worker: record for worker, record in records.items() if _has_failed(record)}
    if not failed:
        return False
    if now_s - min(_end_s(record) for record in failed.values()) > grace_s:
        return True
    is_lost = any(record.code == LOST_WORKER for record in failed.values())
    return is_lost and now_s - max(_end_s(record) for record in records.values()) > _SILENCE_S


def is_node_lost(records: Mapping[int, Record], step_code: int) -> bool:
    """Returns True if mpirun or a worker reports that a node does not answer.

    In this case the caller checks which node it is.
    """
    return step_code == _LOST_A_DAEMON or any(r.code == LOST_WORKER for r in records.values())


def ending(
    records: Mapping[int, Record], step_code: int, unreachable: Collection[int] = ()
) -> Ending:
    """Returns the result of the workers from their records.

    The first worker that failed is the cause, unless it exited because it had lost another worker.

    Args:
      records: The records of the workers that have started.
      step_code: The exit code of `srun` or `mpirun`.
      unreachable: The workers on nodes that do not answer. These workers may report that they have
        lost the others.
    """
    in_order = sorted(records.items(), key=lambda item: _end_s(item[1]))
    failed = [(worker, record) for worker, record in in_order if _has_failed(record)]
    # When one worker has failed, Slurm and mpirun stop the others.
    first_s = _end_s(failed[0][1]) if failed else 0.0
    by_itself = [
        (worker, record)
        for worker, record in failed
        if not _is_follower(record, first_s) and worker not in unreachable
    ]
    silent = [worker for worker, record in in_order if record.ended_s is None]
    if by_itself and step_code != _LOST_A_DAEMON:
        worker, record = by_itself[0]
        kind: FailureKind = "exited" if (record.code or 0) > 0 else "signal"
        return Ending(exit_code=shell_code(record.code or 0), worker=worker, kind=kind)
    if unreachable and failed:
        detail = "its node does not answer"
        return Ending(
            exit_code=TOOK_TOO_LONG, worker=min(unreachable), kind="silent", detail=detail
        )
    if silent and step_code != 0:
        detail = "no further message from it"
        return Ending(exit_code=TOOK_TOO_LONG, worker=silent[0], kind="silent", detail=detail)
    if step_code == _LOST_A_DAEMON:
        return Ending(exit_code=LOST_WORKER)
    if failed:
        worker, record = failed[0]
        early = [one for one, other in in_order if other.code == 0 and _end_s(other) <= first_s]
        if early:
            detail = f"worker {worker} still needed it"
            return Ending(exit_code=1, worker=early[0], kind="ended early", detail=detail)
        return Ending(exit_code=shell_code(record.code or 0), worker=worker)
    asked = [record for _, record in in_order if record.code in STOP_CODES]
    return Ending(exit_code=shell_code(asked[0].code or 0) if asked else step_code)


def failure_of(
    end: Ending,
    records: Mapping[int, Record],
    files: JobFiles,
    first_bytes: Mapping[int, int] | None = None,
) -> Failure | None:
    """Returns the failure of the worker that failed first, or None if none failed.

    Args:
      end: The end of the workers.
      records: Their records.
      files: The files of the job.
      first_bytes: The place in each worker's log from which on it has the output of this start.
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


def stopped_after(end: Ending, records: Mapping[int, Record]) -> dict[str, bool]:
    """Returns the workers that still ran after the first failure; True if they had to be killed."""
    if end.worker is None or end.kind == "silent":
        return {}
    first_s = _end_s(records[end.worker])
    return {
        f"worker {worker}": record.code in (None, -signal.SIGKILL)
        for worker, record in records.items()
        if worker != end.worker and (record.ended_s is None or record.ended_s > first_s)
    }


def _has_failed(record: Record) -> bool:
    return record.code not in (None, 0, *STOP_CODES)


def _is_follower(record: Record, first_s: float) -> bool:
    is_later = _end_s(record) > first_s and record.code in (-signal.SIGTERM, -signal.SIGKILL)
    return record.code == LOST_WORKER or is_later


def _end_s(record: Record) -> float:
    return record.ended_s if record.ended_s is not None else record.started_s
