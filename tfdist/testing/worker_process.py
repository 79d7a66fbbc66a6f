"""The worker's side of a run: a call, which ends together with the others, or a forked script."""

import contextlib
import faulthandler
import importlib
import os
import pickle
import random
import runpy
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from typing import Any

from tfdist.testing.job import Job, write_whole

# The worker writes its Python stacks at this signal. It is a real-time signal: the code under test
# may use the others.
STACKS_SIGNAL = signal.SIGRTMIN + 7


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of a call in one worker."""

    time_s: float
    payload: bytes | None  # the value or the exception, pickled; None if that is impossible
    error: str | None = None  # the exception in one line, None if the call returned
    traceback: str = ""

    @classmethod
    def read(cls, job: Job) -> "Outcome | None":
        """Returns the outcome that the worker wrote, or None before that."""
        try:
            return cls(**pickle.loads(job.result_path.read_bytes()))
        except FileNotFoundError:
            return None

    def write(self, job: Job) -> None:
        """Writes the outcome for the test."""
        write_whole(job.result_path, pickle.dumps(vars(self)))


def make_call(job: Job) -> None:
    """Makes the call of a run as one of its workers.

    A worker whose call returned stays until every worker's has: a peer may still be in the middle
    of a collective with it. A worker whose call raised ends at once, without the clean-up at exit
    that would wait for its peers.
    """
    stacks = open(job.stacks_path, "w")  # noqa: SIM115 (open as long as the process lives)
    faulthandler.register(STACKS_SIGNAL, file=stacks, all_threads=True)
    _start_afresh(job)
    outcome = _outcome_of_call(job)
    if outcome.error is not None:
        outcome.write(job)
        _flush()
        os._exit(1)
    _flush()
    outcome.write(job)
    while not job.all_finished_path.exists():
        time.sleep(0.005)


def run_as_program(job: Job) -> None:
    """Runs the job's script as Python's main program; its error or exit is raised here.

    The caller must let that end the process, so that the exit code is the script's own.
    """
    _start_afresh(job)
    sys.argv = list(job.command[1:])
    sys.path.insert(0, os.path.dirname(sys.argv[0]))
    runpy.run_path(sys.argv[0], run_name="__main__")


def _start_afresh(job: Job) -> None:
    sys.path[:] = job.sys_path
    importlib.invalidate_caches()  # test modules may be younger than the fork server
    sys.argv = [job.name]
    tempfile.tempdir = None  # in the fork server it may be set to the server's
    # Lines reach the file as they are written, so that a killed worker leaves its last one.
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    # Forked processes begin with equal random states, started ones do not.
    random.seed()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()


def _outcome_of_call(job: Job) -> Outcome:
    import cloudpickle

    try:
        function, args, kwargs = cloudpickle.loads(job.call_path.read_bytes())
        value = function(*args, **kwargs)
    except BaseException as error:
        return _failure(error)
    try:
        return Outcome(time_s=time.monotonic(), payload=cloudpickle.dumps(value))
    except Exception as error:
        kind = type(value).__name__
        return _failure(
            TypeError(
                f"the result, of type {kind}, cannot be sent to the test: {error}. "
                "Return plain values: numbers, strings, lists, NumPy arrays."
            )
        )


def _failure(error: BaseException) -> Outcome:
    import cloudpickle

    time_s = time.monotonic()
    # The first frame is the one above.
    trace = error.__traceback__.tb_next if error.__traceback__ else None
    text = "".join(traceback.format_exception(type(error), error, trace))
    summary = traceback.format_exception_only(type(error), error)[-1].strip()
    payload: bytes | None = None
    with contextlib.suppress(Exception):
        payload = cloudpickle.dumps(error)
    return Outcome(time_s=time_s, payload=payload, error=summary, traceback=text)


def _flush() -> None:
    stream: Any
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
