"""The end of one start of `tfdist run`: its result, the failure, and the lines about both.

`tfdist.launch.slurm.ending` is the same for a Slurm job.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from tfdist.launch.failures.failure import Failure
from tfdist.launch.failures.first_failure import Verdict
from tfdist.launch.failures.restart_rule import Limits
from tfdist.launch.options.run_options import RunOptions
from tfdist.launch.run.stop_request import StopRequest
from tfdist.launch.screen.error_excerpt import exception_line
from tfdist.launch.screen.failure_box import Aftermath, how_text
from tfdist.launch.workers.worker_state import WorkerState
from tfdist.process.exit_codes import LOST_WORKER


@dataclass(frozen=True, kw_only=True)
class Result:
    """One start of the workers, after its end.

    Attributes:
      start_error: Why the workers could not be started; "" if they were.
    """

    verdict: Verdict
    failure: Failure | None = None
    start_error: str = ""
    aftermath: Aftermath = field(default_factory=Aftermath)


def restart_limits(options: RunOptions) -> Limits:
    """Returns what these options allow after a failure."""
    return Limits(
        max_restarts=options.max_restarts,
        min_instances=options.min_instances,
        # On several machines the user or the default sets the ports.
        can_change_ports=options.is_on_this_machine and not options.nodes,
    )


def failure_of(
    verdict: Verdict,
    workers: Sequence[WorkerState],
    options: RunOptions,
    *,
    log_tail: Sequence[str],
    mpirun_lines: Sequence[str],
    started_s: float,
    now_s: float,
) -> Failure:
    """Returns the failure of the worker that the verdict blames, with the last lines of its log.

    `started_s` is the start of the run. Both times are on the launcher's clock.
    """
    worker = next(worker for worker in workers if worker.plan.index == verdict.worker)
    times = (worker.ended_s, worker.lost_s, now_s)
    failed_s = next(time_s for time_s in times if time_s is not None)
    exception = exception_line(log_tail) or ""
    # A worker that MPI ended prints no reason, but mpirun does.
    has_reason = bool(exception) or not options.uses_mpirun
    is_elsewhere = worker.code == LOST_WORKER and len(options.nodes) > 1
    hint = "look at what the launchers of the other nodes say" if is_elsewhere else ""
    return Failure(
        name=worker.plan.name,
        index=worker.plan.index,
        host=worker.host or worker.plan.host,
        pid=worker.pid,
        kind=verdict.kind,
        code=None if worker.code is None else abs(worker.code),
        after_s=failed_s - started_s,
        at=datetime.now() - timedelta(seconds=now_s - failed_s),
        step=worker.step,
        log_tail=log_tail,
        log_path=worker.plan.log_path,
        detail=verdict.detail or hint,
        exception=exception,
        has_trained=worker.has_trained,
        mpirun_lines=() if has_reason else mpirun_lines,
    )


def restart_text(result: Result, restarts: int, options: RunOptions) -> str:
    """Returns the line about a restart after this result."""
    restart = f"restart {restarts} of {options.max_restarts}"
    failure = result.failure
    if failure is None:
        return f"{restart}: {result.start_error}"
    last = "newest snapshot or checkpoint" if options.snapshot_steps else "last checkpoint"
    failed = f"{failure.name} failed ({how_text(failure)})"
    return f"{restart}: {failed}; all workers start again from the {last}"


def stopped_text(result: Result, stop: StopRequest, lasted_s: float, grace_s: float) -> str:
    """Returns the line about the end of a run that a signal has stopped."""
    assert stop.number is not None
    took = f"after {lasted_s:.1f} of {grace_s:g} s"
    killed = ", ".join(result.aftermath.killed)
    ended = f"all workers have left {took}"
    if killed:
        ended = f"{killed} had to be killed {took}; steps after the last checkpoint are lost"
    return f"stopped by {signal.Signals(stop.number).name}{stop.why}; {ended}"
