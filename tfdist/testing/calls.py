"""The calls of a run: watched until all return or one fails."""

import time
import warnings
from collections.abc import Sequence
from typing import Any

from tfdist.launch.failures.failure import names_text
from tfdist.launch.failures.first_failure import WorkerEnd
from tfdist.launch.functions.calls import Outcome, exception_of, value_of
from tfdist.testing.failures import cause_of
from tfdist.testing.job import Job
from tfdist.testing.run import Run, stop_after_failure, stop_after_time, wait_until

_EXIT_LIMIT_S = 10.0


def wait_for_results(run: Run, timeout_s: float) -> list[Any]:
    """Waits until the call returned in every worker, and returns the values in worker order.

    If a worker fails, or not all have finished in time, counted from when all had started, all are
    stopped: WorkerFailedError or WorkerTimeoutError.
    """
    __tracebackhide__ = True
    start_s = run.wait_for_start()
    outcomes: list[Outcome | None] = [None] * len(run.workers)

    def is_decided() -> bool:
        run.check()
        for index, job in enumerate(run.workers):
            outcomes[index] = outcomes[index] or Outcome.read(job.result_path)
        return None not in outcomes or bool(_failures(run.workers, outcomes))

    in_time = wait_until(is_decided, start_s + timeout_s - time.monotonic())
    first = cause_of(_failures(run.workers, outcomes))
    if first is not None:
        outcome = outcomes[first.worker] or Outcome.read(run.workers[first.worker].result_path)
        if outcome is None:
            raise stop_after_failure(run, first, start_s)
        raise stop_after_failure(run, first, start_s, outcome.traceback) from exception_of(outcome)
    if not in_time:
        late = [index for index, outcome in enumerate(outcomes) if outcome is None]
        raise stop_after_time(run, late, timeout_s)
    values = [
        value_of(outcome, index) for index, outcome in enumerate(outcomes) if outcome is not None
    ]
    _let_go(run)
    return values


def _failures(workers: Sequence[Job], outcomes: Sequence[Outcome | None]) -> list[WorkerEnd]:
    failures = []
    for index, (job, outcome) in enumerate(zip(workers, outcomes, strict=True)):
        end = job.ended()
        if end is not None:
            outcome = outcome or Outcome.read(job.result_path)  # Written just before the end.
        if outcome is not None and outcome.error is not None:
            failures.append(WorkerEnd(worker=index, time_s=outcome.time_s, error=outcome.error))
        elif outcome is None and end is not None:
            failures.append(WorkerEnd(worker=index, time_s=end.time_s, exit_code=end.value))
    return failures


def _let_go(run: Run) -> None:
    """Waits until all workers have ended by themselves; no other worker needs them any more."""
    run.workers[0].all_finished_path.touch()
    if not wait_until(run.has_ended, _EXIT_LIMIT_S):
        left = [index for index, job in enumerate(run.workers) if not job.ended()]
        warnings.warn(
            f"{names_text(left)} did not exit within {_EXIT_LIMIT_S:g} s after the last result, "
            "so it is stopped: a thread still runs, or the clean-up at exit hangs.",
            stacklevel=4,
        )
