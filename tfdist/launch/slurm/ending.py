"""How the workers of a Slurm job have ended: by whose fault, and with which exit code."""

from __future__ import annotations

import os
import signal
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from tfdist.launch.failures import Failure, FailureKind
from tfdist.launch.screen.failure_box import log_tail
from tfdist.launch.slurm.worker import JobFiles, Record
from tfdist.process.exit_codes import LOST_WORKER, SAVED_AND_STOPPED

_STOP_CODES = tuple(SAVED_AND_STOPPED.values())
_SILENT = 124  # as `tfdist run` has it
_LOST_A_DAEMON = 205  # mpirun's exit code when it does not reach a node any more
# Those that lost a worker have all left: the lost one will not be heard of any more.
_SILENCE_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How the workers have ended.

    Attributes:
      exit_code: What the job ends with.
      worker: The one that failed first; None if none has.
      kind: How it failed.
      detail: What else is known about that.
    """

    exit_code: int
    worker: int | None = None
    kind: FailureKind = "exited"
    detail: str = ""


def is_hopeless(records: Mapping[int, Record], now_s: float, grace_s: float) -> bool:
    """Whether workers have failed and the rest will not end by itself: a node does not answer.

    Args:
      records: The workers that have started.
      now_s: The time, in seconds since 1970.
      grace_s: How long the others may take once one has failed.
    """
    failed = {worker: record for worker, record in records.items() if _has_failed(record)}
    if not failed:
        return False
    if now_s - min(_end_s(record) for record in failed.values()) > grace_s:
        return True
    is_lost = any(record.code == LOST_WORKER for record in failed.values())
    return is_lost and now_s - max(_end_s(record) for record in records.values()) > _SILENCE_S


def is_node_lost(records: Mapping[int, Record], step_code: int) -> bool:
    """Whether somebody says that a node does not answer: it is worth looking which."""
    return step_code == _LOST_A_DAEMON or any(r.code == LOST_WORKER for r in records.values())


def ending(
    records: Mapping[int, Record], step_code: int, unreachable: Collection[int] = ()
) -> Ending:
    """Returns how the workers have ended.

    The first that failed is the cause, unless it left because it had lost another one.

    Args:
      records: The workers that have started.
      step_code: What `srun` or `mpirun` ended with.
      unreachable: Those whose nodes do not answer. They think that they have lost the others.
    """
    in_order = sorted(records.items(), key=lambda item: _end_s(item[1]))
    failed = [(worker, record) for worker, record in in_order if _has_failed(record)]
    # Slurm and mpirun stop the others when one has failed.
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
        return Ending(exit_code=_shell_code(record), worker=worker, kind=kind)
    if unreachable and failed:
        detail = "its node does not answer"
        return Ending(exit_code=_SILENT, worker=min(unreachable), kind="silent", detail=detail)
    if silent and step_code != 0:
        detail = "nothing more was heard of it"
        return Ending(exit_code=_SILENT, worker=silent[0], kind="silent", detail=detail)
    if step_code == _LOST_A_DAEMON:
        return Ending(exit_code=LOST_WORKER)
    if failed:
        worker, record = failed[0]
        early = [one for one, other in in_order if other.code == 0 and _end_s(other) <= first_s]
        if early:
            detail = f"worker {worker} still needed it"
            return Ending(exit_code=1, worker=early[0], kind="ended early", detail=detail)
        return Ending(exit_code=_shell_code(record), worker=worker)
    asked = [record for _, record in in_order if record.code in _STOP_CODES]
    return Ending(exit_code=_shell_code(asked[0]) if asked else step_code)


def failure_of(end: Ending, records: Mapping[int, Record], files: JobFiles) -> Failure | None:
    """Returns what is known about the worker that failed first; None if none has."""
    if end.worker is None:
        return None
    record = records[end.worker]
    # Of a silent one the last sign of life is not known: those that missed it left soon after.
    at_s = record.ended_s or max(_end_s(other) for other in records.values())
    log_path = files.log_path(end.worker)
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
        log_tail=log_tail(log_path),
        log_path=Path(os.path.relpath(log_path)),
        detail=end.detail,
    )


def stopped_after(end: Ending, records: Mapping[int, Record]) -> dict[str, bool]:
    """Returns the workers that ran on after the first failure; True if they had to be killed."""
    if end.worker is None or end.kind == "silent":
        return {}
    first_s = _end_s(records[end.worker])
    return {
        f"worker {worker}": record.code in (None, -signal.SIGKILL)
        for worker, record in records.items()
        if worker != end.worker and (record.ended_s is None or record.ended_s > first_s)
    }


def _has_failed(record: Record) -> bool:
    return record.code not in (None, 0, *_STOP_CODES)


def _is_follower(record: Record, first_s: float) -> bool:
    is_later = _end_s(record) > first_s and record.code in (-signal.SIGTERM, -signal.SIGKILL)
    return record.code == LOST_WORKER or is_later


def _end_s(record: Record) -> float:
    return record.ended_s if record.ended_s is not None else record.started_s


def _shell_code(record: Record) -> int:
    code = record.code or 0
    return code if code >= 0 else 128 - code
