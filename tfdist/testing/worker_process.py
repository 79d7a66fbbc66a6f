"""The worker's side of a run: a call, which ends together with the others, or a forked script."""

import contextlib
import faulthandler
import importlib
import os
import random
import runpy
import signal
import sys
import tempfile
import time
from typing import Any

from tfdist.launch.functions.calls import Outcome, make_call
from tfdist.testing.job import Job

# The worker writes its Python stacks at this signal. It is a real-time signal: the code under test
# may use the others.
STACKS_SIGNAL = signal.SIGRTMIN + 7


def make_runs_call(job: Job) -> None:
    """Makes the call of a run as one of its workers.

    A worker whose call returned stays until every worker's has: a peer may still be in the middle
    of a collective with it. A worker whose call raised ends at once, without the clean-up at exit
    that would wait for its peers.
    """
    stacks = open(job.stacks_path, "w")  # noqa: SIM115 (open as long as the process lives)
    faulthandler.register(STACKS_SIGNAL, file=stacks, all_threads=True)
    _start_afresh(job)
    outcome = _outcome_of(job.call_path.read_bytes())
    if outcome.error is not None:
        outcome.write(job.result_path)
        _flush()
        os._exit(1)
    _flush()
    outcome.write(job.result_path)
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


def _outcome_of(call: bytes) -> Outcome:
    try:
        return Outcome.of_value(make_call(call))
    except BaseException as error:
        return Outcome.of_error(error)


def _flush() -> None:
    stream: Any
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
