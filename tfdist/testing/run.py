"""The processes of one run: start, watch, stop, and the error of a failed run."""

import contextlib
import itertools
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tfdist.launch.failures.first_failure import WorkerEnd
from tfdist.launch.functions.calls import WorkerFailedError
from tfdist.launch.machine.mpi import find_mpirun, mpirun_command, mpirun_environment
from tfdist.launch.machine.ports import ReservedPorts
from tfdist.launch.machine.processes import python_command
from tfdist.testing.engines import check_request, tf_configs, worker_environment
from tfdist.testing.failures import (
    WorkerTimeoutError,
    failure_text,
    tail_text,
    timeout_text,
)
from tfdist.testing.job import Event, Job, read_text
from tfdist.testing.server_process import ServerProcess
from tfdist.testing.worker_process import STACKS_SIGNAL

_MPIRUN_GRACE_S = 5.0  # mpirun gives its ranks a second, and then tidies up
_START_LIMIT_S = 60.0
_STOP_LIMIT_S = 20.0
_run_numbers = itertools.count()

_STACKS_LIMIT_S = 1.0
_LONGEST_PAUSE_S = 0.5
_END_LIMIT_S = 2.0


class Run:
    """The workers of a run, and for Horovod their mpirun; `close` ends and removes them all."""

    def __init__(self, server: ServerProcess, folder: Path, workers: tuple[Job, ...]) -> None:
        """Makes a run of workers that are not started yet; their files are in the folder."""
        self.workers = workers
        self.mpirun: Job | None = None
        self._server = server
        self._folder = folder
        self._direct: list[Job] = []  # started here, not by mpirun
        self._connections: list[socket.socket] = []
        self._ports: ReservedPorts | None = None

    def start_workers(self, env: Mapping[str, str], *, with_tf_config: bool) -> None:
        configs: list[dict[str, str]] = [{}] * len(self.workers)
        if with_tf_config:
            self._ports = ReservedPorts(len(self.workers))
            configs = [{"TF_CONFIG": config} for config in tf_configs(self._ports.ports)]
        for job, config in zip(self.workers, configs, strict=True):
            self._start(replace(job, environ={**job.environ, **config, **env}))

    def start_mpirun(self) -> None:
        mpirun = find_mpirun()
        assert mpirun is not None
        worker = self.workers[0]
        job_path = self._folder / "rank-job"
        job_path.write_text(replace(worker, environ={}).to_json())
        rank_command = python_command(
            "tfdist.testing.mpi_rank", str(job_path), self._server.socket_path, with_packages=False
        )
        self.mpirun = replace(
            worker,
            name="mpirun",
            command=mpirun_command(mpirun, len(self.workers), rank_command),
            forked=False,
            environ=mpirun_environment(mpirun, worker.environ),
            grace_s=_MPIRUN_GRACE_S,
        )
        self._start(self.mpirun)

    def wait_for_start(self) -> float:
        """Waits until every worker has started, and returns when the last one did.

        If mpirun fails before that, or the start takes too long, it raises WorkerFailedError.
        """
        wait_until(self._is_start_decided, _START_LIMIT_S)
        starts = [job.started() for job in self.workers]
        if None not in starts:
            return max(start.time_s for start in starts if start is not None)
        output = self.mpirun.output().strip() if self.mpirun is not None else ""
        raise WorkerFailedError(
            f"worker {starts.index(None)} of {len(starts)} did not start\n\n"
            + tail_text("mpirun", output),
            worker=starts.index(None),
            exit_code=None,
            output=[job.output() for job in self.workers],
        )

    def check(self) -> None:
        self._server.check()

    def end_of(self, job: Job) -> Event | None:
        """Returns the end of a process of the run, or None while it runs."""
        mpirun_end = self.mpirun.ended() if self.mpirun is not None else None
        end = job.ended()  # read second: nothing is recorded after mpirun's end
        if end is None and mpirun_end is not None and job.command and not job.forked:
            # mpirun killed the script together with the process that records its end.
            return Event(value=-signal.SIGKILL, time_s=mpirun_end.time_s)
        return end

    def has_ended(self) -> bool:
        """Returns whether every process of the run that ever started has ended."""
        if self._server.has_ended():
            return True  # the kernel killed its children with it
        started = [*self._direct, *(job for job in self.workers if job.started())]
        return all(self.end_of(job) for job in started)

    def stop(self) -> None:
        """Ends all processes that still run: TERM, and KILL a little later."""
        ends = [job.ended() for job in self.workers]
        if self.mpirun is not None and any(end is not None and end.value for end in ends):
            # mpirun stops the other ranks by itself; a signal in the middle of that crashes it.
            wait_until(self.has_ended, _MPIRUN_GRACE_S)
        was_started = bool(self._connections)
        while self._connections:
            self._connections.pop().close()
        if was_started and not wait_until(self.has_ended, _STOP_LIMIT_S):
            raise RuntimeError(f"processes still run {_STOP_LIMIT_S:.0f} s after KILL")
        if self._ports is not None:
            self._ports.release()

    def close(self) -> None:
        try:
            self.stop()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self, job: Job) -> None:
        self._connections.append(self._server.start(job))
        self._direct.append(job)

    def _is_start_decided(self) -> bool:
        self.check()
        if self.mpirun is not None and self.mpirun.ended() is not None:
            return True
        return all(job.started() for job in self.workers)


def start_run(
    server: ServerProcess,
    *,
    engine: str,
    num_workers: int | None,
    env: Mapping[str, str] | None,
    command: Sequence[str] = (),
    forked: bool = False,
    call: bytes = b"",
) -> Run:
    """Starts N workers that run `command` (a script, if `forked`) or, if it is empty, make `call`.

    Without what the engine needs, or with a wrong number, it raises what `check_request` does.
    """
    num_workers = check_request(engine, num_workers)
    env = dict(env or {})
    folder = server.folder / f"run-{next(_run_numbers)}"
    temporary = folder / "tmp"
    temporary.mkdir(parents=True)
    workers = tuple(
        Job(
            folder=str(folder),
            name=f"worker-{index}",
            environ=worker_environment(os.environ, env, temporary),
            cwd=os.getcwd(),
            command=tuple(command),
            forked=forked,
            sys_path=tuple(sys.path),
        )
        for index in range(num_workers)
    )
    run = Run(server, folder, workers)
    try:
        workers[0].call_path.write_bytes(call)
        if engine == "horovod":
            run.start_mpirun()
        else:
            run.start_workers(env, with_tf_config=engine == "grpc")
    except BaseException:
        run.close()
        raise
    return run


def stop_after_failure(
    run: Run, failure: WorkerEnd, start_s: float, traceback: str = ""
) -> WorkerFailedError:
    """Stops the run and returns the error about its first failure."""
    stopped = [index for index, job in enumerate(run.workers) if not job.ended()]
    # The failed worker ends by itself; then mpirun, if there is one, stops the others.
    wait_until(lambda: run.end_of(run.workers[failure.worker]) is not None, _END_LIMIT_S)
    run.stop()
    outputs = [job.output() for job in run.workers]
    message = failure_text(
        failure,
        start_s=start_s,
        num_workers=len(run.workers),
        stopped=[index for index in stopped if index != failure.worker],
        output=outputs[failure.worker],
        traceback=traceback,
        launcher_output=run.mpirun.output() if run.mpirun else "",
    )
    return WorkerFailedError(
        message, worker=failure.worker, exit_code=failure.exit_code, output=outputs
    )


def stop_after_time(run: Run, late: Sequence[int], timeout_s: float) -> WorkerTimeoutError:
    """Stops the run and returns the error about the late workers, with their stacks."""
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


def wait_until(condition: Callable[[], bool], limit_s: float) -> bool:
    """Waits until the condition holds, and returns whether it did within the limit.

    It looks every 2 to 20 ms, or, where a look itself takes long, a quarter of the time: a look
    that starts a program or reads all processes leaves the cores to those that it waits for.
    """
    give_up_s = time.monotonic() + limit_s
    pause_s = 0.002
    while True:
        requested_s = time.monotonic()
        if condition():
            return True
        now_s = time.monotonic()
        if now_s >= give_up_s:
            return False
        time.sleep(max(pause_s, min(3 * (now_s - requested_s), _LONGEST_PAUSE_S)))
        pause_s = min(0.02, pause_s * 1.5)
