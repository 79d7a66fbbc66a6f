"""Function calls in workers: sent by value, and watched until all return or one fails."""

import contextlib
import os
import sys
import sysconfig
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import Any

from tfdist.launch.failures.failure import names_text
from tfdist.testing.failures import WorkerFailure, WorkerTracebackError, cause_of
from tfdist.testing.job import Job
from tfdist.testing.run import Run, stop_after_failure, stop_after_time, wait_until
from tfdist.testing.worker_process import Outcome

_EXIT_LIMIT_S = 10.0


def wait_for_results(run: Run, timeout_s: float) -> list[Any]:
    """Waits until the call returned in every worker, and returns the values in worker order.

    Raises:
      WorkerFailedError: If a worker fails; the others are then stopped.
      WorkerTimeoutError: If not all have finished within the limit, counted from the time when
        all workers had started; all are then stopped.
    """
    __tracebackhide__ = True
    start_s = run.wait_for_start()
    outcomes: list[Outcome | None] = [None] * len(run.workers)

    def is_decided() -> bool:
        run.check()
        for index, job in enumerate(run.workers):
            outcomes[index] = outcomes[index] or Outcome.read(job)
        return None not in outcomes or bool(_failures(run.workers, outcomes))

    in_time = wait_until(is_decided, start_s + timeout_s - time.monotonic())
    first = cause_of(_failures(run.workers, outcomes))
    if first is not None:
        outcome = outcomes[first.worker] or Outcome.read(run.workers[first.worker])
        cause = exception_of(outcome) if outcome is not None else None
        raise stop_after_failure(run, first, start_s) from cause
    if not in_time:
        late = [index for index, outcome in enumerate(outcomes) if outcome is None]
        raise stop_after_time(run, late, timeout_s)
    values = [
        value_of(outcome, index) for index, outcome in enumerate(outcomes) if outcome is not None
    ]
    _let_go(run)
    return values


def _failures(workers: Sequence[Job], outcomes: Sequence[Outcome | None]) -> list[WorkerFailure]:
    failures = []
    for index, (job, outcome) in enumerate(zip(workers, outcomes, strict=True)):
        end = job.ended()
        outcome = outcome or (Outcome.read(job) if end else None)  # written just before the end
        if outcome is not None and outcome.error is not None:
            failures.append(
                WorkerFailure(
                    worker=index,
                    time_s=outcome.time_s,
                    error=outcome.error,
                    traceback=outcome.traceback,
                )
            )
        elif outcome is None and end is not None:
            failures.append(WorkerFailure(worker=index, time_s=end.time_s, exit_code=end.value))
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


def pickle_call(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> bytes:
    """Returns a call as bytes that a worker can read without importing the test's module.

    Raises:
      TypeError: If the function or an argument cannot be sent to another process.
    """
    import cloudpickle

    modules = _modules_by_value(function)
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        return bytes(cloudpickle.dumps((function, args, kwargs)))
    except Exception as error:
        raise TypeError(
            f"the call cannot be sent to a worker: {error}. "
            "Make what cannot be pickled (sessions, locks, open files) inside the function."
        ) from error
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


def value_of(outcome: Outcome, worker: int) -> Any:
    """Returns the value that a worker's call returned.

    Raises:
      TypeError: If the value cannot be unpickled in the test's process.
    """
    import cloudpickle

    assert outcome.payload is not None
    try:
        return cloudpickle.loads(outcome.payload)
    except Exception as error:
        raise TypeError(
            f"the result of worker {worker} cannot be read in the test: {error}. "
            "Return plain values: numbers, strings, lists, NumPy arrays."
        ) from error


def exception_of(outcome: Outcome) -> BaseException:
    """Returns a worker's exception, or one that holds its traceback as text."""
    import cloudpickle

    payload = outcome.payload
    # Unpickling an error of TensorFlow would import TensorFlow into the test's process.
    if payload is not None and ("tensorflow" in sys.modules or b"tensorflow" not in payload):
        with contextlib.suppress(Exception):
            error = cloudpickle.loads(payload)
            if isinstance(error, Exception):
                return error
    return WorkerTracebackError(outcome.traceback)


def _modules_by_value(function: Callable[..., Any]) -> list[ModuleType]:
    """Returns the modules that workers cannot import: the function's own, and those of pytest.

    The modules of tfdist and of installed packages are pickled by name: their classes and their
    state are then the worker's.
    """
    while isinstance(function, partial):
        function = function.func
    own = getattr(function, "__module__", None) or type(function).__module__
    installed = tuple(
        sysconfig.get_path(kind) + os.sep for kind in ("stdlib", "purelib", "platlib")
    )
    chosen = []
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file is None or name.split(".")[0] in ("tfdist", "__main__"):
            continue
        is_pytests = os.path.basename(file).startswith(("test_", "conftest."))
        if (name == own or is_pytests) and not os.path.abspath(file).startswith(installed):
            chosen.append(module)
    return chosen
