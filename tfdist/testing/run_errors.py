"""Ending a run that failed, and the error that tells the test about it."""

import contextlib
import os
from collections.abc import Sequence

from tfdist.testing.failures import (
    Failure,
    WorkerFailedError,
    WorkerTimeoutError,
    failure_text,
    timeout_text,
)
from tfdist.testing.job import read_text
from tfdist.testing.run import Run
from tfdist.testing.waiting import wait_until
from tfdist.testing.worker_process import STACKS_SIGNAL

_STACKS_LIMIT_S = 1.0
_END_LIMIT_S = 2.0


def stop_after_failure(run: Run, failure: Failure, start_s: float) -> WorkerFailedError:
    """Stops the run and returns the error about its first failure."""
    stopped = [index for index, job in enumerate(run.workers) if not job.ended()]
    # It ends by itself, and then mpirun, if there is one, begins to stop the others.
    wait_until(lambda: run.end_of(run.workers[failure.worker]) is not None, _END_LIMIT_S)
    run.stop()
    outputs = [job.output() for job in run.workers]
    message = failure_text(
        failure,
        start_s=start_s,
        num_workers=len(run.workers),
        stopped=[index for index in stopped if index != failure.worker],
        output=outputs[failure.worker],
        launcher_output=run.mpirun.output() if run.mpirun else "",
    )
    return WorkerFailedError(
        message, worker=failure.worker, exit_code=failure.exit_code, output=outputs
    )


def stop_after_time(run: Run, late: Sequence[int], timeout_s: float) -> WorkerTimeoutError:
    """Stops the run and returns the error about the workers that were late, and where they were."""
    late_jobs = [run.workers[index] for index in late if run.workers[index].stacks_path.exists()]
    for job in late_jobs:
        start = job.started()
        if start is not None and not job.ended():
            with contextlib.suppress(ProcessLookupError):
                os.kill(start.value, STACKS_SIGNAL)
    wait_until(lambda: all(read_text(job.stacks_path) for job in late_jobs), _STACKS_LIMIT_S)
    run.stop()
    outputs = [job.output() for job in run.workers]
    message = timeout_text(
        timeout_s=timeout_s,
        num_workers=len(run.workers),
        late=late,
        outputs=outputs,
        stacks=[read_text(job.stacks_path) for job in run.workers],
    )
    return WorkerTimeoutError(message, late_workers=late, output=outputs)
