"""Child processes of `tfdist doctor`: a look at TensorFlow, and a run of two workers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import psutil

from tfdist.cluster import Cluster, Task, format_tf_config
from tfdist.cluster.instance_variables import OF_ONE_RUN
from tfdist.cluster.ranks import OF_OTHER_LAUNCHERS
from tfdist.launch.doctor.report import Finding, broken, good
from tfdist.launch.machine.mpi import find_mpirun, mpirun_command, mpirun_environment
from tfdist.launch.machine.ports import ReservedPorts
from tfdist.launch.machine.processes import python_command

_GRACE_S = 3.0

_LOOK_LIMIT_S = 120.0  # a cold disk and a busy machine: TensorFlow is a gigabyte

_MODULE = "tfdist.strategies.self_test"
_NUM_WORKERS = 2
_TRIAL_LIMIT_S = 90.0
_START_LIMIT_S = 40.0  # They start together, but a busy machine may start one late.
ENGINES = {"grpc": "gRPC", "horovod": "Horovod"}
_BY_HAND = {
    "grpc": f"tfdist run --num-instances 2 -- {sys.executable} -m {_MODULE} grpc",
    "horovod": f"mpirun -np 2 {sys.executable} -m {_MODULE} horovod",
}


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a child process ended.

    Attributes:
      exit_code: Minus the signal's number if one ended it; None if it was stopped at the limit.
      stdout: All that it wrote there.
      stderr: All that it wrote there.
      seconds: How long it ran.
    """

    exit_code: int | None
    stdout: str
    stderr: str
    seconds: float

    @property
    def last_line(self) -> str:
        """The last line that it wrote to standard error, else to standard output."""
        lines = (self.stderr.strip() or self.stdout).splitlines()
        # mpirun frames what it says with dashes.
        telling = [line.strip() for line in lines if line.strip(" -\t")]
        return telling[-1] if telling else "it said nothing"


async def run_child(command: Sequence[str], environ: Mapping[str, str], *, limit_s: float) -> Ended:
    """Runs a command to its end, or to the limit; whoever cancels this stops it, too.

    Raises:
      OSError: If it cannot be started.
    """
    start_s = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        *command,
        env=dict(environ),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for the doctor, which stops all.
    )
    exit_code, output = None, (b"", b"")
    try:
        output = await asyncio.wait_for(process.communicate(), limit_s)
        exit_code = process.returncode
    except asyncio.TimeoutError:  # Python 3.10's is another than the built-in one.
        pass
    finally:
        await _stop(process)
    stdout, stderr = (text.decode(errors="replace") for text in output)
    return Ended(
        exit_code=exit_code, stdout=stdout, stderr=stderr, seconds=time.monotonic() - start_s
    )


async def run_together(
    commands: Sequence[tuple[Sequence[str], Mapping[str, str]]], *, limit_s: float
) -> list[Ended | None]:
    """Runs commands side by side until all have ended, or one has failed.

    Returns:
      How each ended, in the order of the commands; None for those stopped since another failed.
    """
    tasks = [
        asyncio.ensure_future(run_child(command, environ, limit_s=limit_s))
        for command, environ in commands
    ]
    try:
        running = set(tasks)
        while running:
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            if any(task.result().exit_code != 0 for task in done):
                break
        return [task.result() if task.done() else None for task in tasks]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _stop(process: asyncio.subprocess.Process) -> None:
    """Ends a process that still runs with all that it started: TERM, then KILL."""
    if process.returncode is not None:
        return
    below: list[psutil.Process] = []
    with contextlib.suppress(psutil.NoSuchProcess):
        below = psutil.Process(process.pid).children(recursive=True)
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)  # mpirun ends its ranks by itself.
    try:
        await asyncio.wait_for(process.wait(), _GRACE_S)
    except asyncio.TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    for one in below:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()


@dataclass(frozen=True, kw_only=True)
class Survey:
    """What `tfdist.strategies.build_info` printed.

    Attributes:
      problem: Why there is nothing of all this, in one line; "" if there is.
      tensorflow: TensorFlow's version.
      keras: The version of what `tf.keras` is in a tfdist program.
      has_cuda: Whether TensorFlow was built for CUDA.
      gpus: The names of the GPUs that TensorFlow sees.
      horovod: Horovod's version; None if it is not installed.
      horovod_problem: Why Horovod cannot be loaded; "" if it can.
      has_mpi: Whether Horovod was built with MPI.
      has_gloo: Whether Horovod was built with gloo.
      has_nccl: Whether Horovod was built with NCCL.
      libmpi: The path of the MPI library that Horovod loads.
      mpi: What that library says about its version.
    """

    problem: str = ""
    tensorflow: str | None = None
    keras: str | None = None
    has_cuda: bool = False
    gpus: tuple[str, ...] = ()
    horovod: str | None = None
    horovod_problem: str = ""
    has_mpi: bool = False
    has_gloo: bool = False
    has_nccl: bool = False
    libmpi: str | None = None
    mpi: str | None = None


async def ask_tensorflow(*, with_horovod: bool) -> Survey:
    """Starts the process and reads its answer."""
    command = python_command("tfdist.strategies.build_info", *(["horovod"] if with_horovod else []))
    return read_survey(
        await run_child(command, survey_environment(os.environ), limit_s=_LOOK_LIMIT_S)
    )


def survey_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment in which TensorFlow says what it is in a tfdist program."""
    # Importing tfdist.estimator chooses Keras 2 unless the user has chosen.
    return {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", **environ}


def read_survey(ended: Ended) -> Survey:
    """Reads the last line of the process, or why there is none."""
    if ended.exit_code is None:
        return Survey(problem=f"it was not done after {ended.seconds:.0f} s")
    if ended.exit_code != 0:
        return Survey(problem=ended.last_line)
    answer = json.loads(ended.stdout.splitlines()[-1])
    known = {field.name for field in fields(Survey)}
    answer = {name: value for name, value in answer.items() if name in known}
    return Survey(**{**answer, "gpus": tuple(answer["gpus"])})


@dataclass(frozen=True, kw_only=True)
class Trial:
    """How the two workers did.

    Attributes:
      engine: "grpc" or "horovod".
      seconds: How long it took, with the import of TensorFlow in both.
      problem: Why they could not train; "" if they did.
      device: Where their gradients were computed.
    """

    engine: str
    seconds: float
    problem: str = ""
    device: str = ""


async def try_workers(engine: str) -> Trial:
    """Starts the workers and waits for their end, one minute and a half at most."""
    try:
        ended = await (_try_grpc() if engine == "grpc" else _try_horovod())
    except OSError as error:
        return Trial(engine=engine, seconds=0.0, problem=str(error))
    return read_trial(engine, ended)


def read_trial(engine: str, ended: Sequence[Ended | None]) -> Trial:
    """Reads how the processes of a trial ended; None is one stopped since another failed."""
    seconds = max((one.seconds for one in ended if one is not None), default=0.0)
    for index, one in enumerate(ended):
        if one is None or one.exit_code == 0:
            continue
        who = f"worker {index}" if engine == "grpc" else "mpirun"
        how = f"was not done after {one.seconds:.0f} s"
        if one.exit_code is not None:
            how = f"ended with exit code {one.exit_code}"
        return Trial(engine=engine, seconds=seconds, problem=f"{who} {how}: {_reason(one)}")
    answers = [_answer(one) for one in ended if one is not None]
    counts = {answer.get("num_workers") for answer in answers}
    if counts != {_NUM_WORKERS}:
        problem = f"each worker was on its own: it saw {counts} workers, not {_NUM_WORKERS}"
        return Trial(engine=engine, seconds=seconds, problem=problem)
    return Trial(engine=engine, seconds=seconds, device=str(answers[0].get("device", "")))


def judge_trial(trial: Trial) -> Finding:
    """Says whether workers can be joined over this engine."""
    name = ENGINES[trial.engine]
    if trial.problem:
        return broken(
            f"two workers over {name}: {trial.problem}",
            f"To see all that they say run: {_BY_HAND[trial.engine]}",
        )
    on = trial.device.removeprefix("/device:")
    return good(f"two workers over {name} trained a step on {on} ({trial.seconds:.1f} s)")


def trial_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns what the workers inherit: not the run that the doctor's own shell may be part of."""
    membership = (*OF_ONE_RUN, "TFDIST_", "SLURM_", "OMPI_COMM_WORLD_", *OF_OTHER_LAUNCHERS)
    kept = {name: value for name, value in environ.items() if not name.startswith(membership)}
    defaults = {
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "TF_USE_LEGACY_KERAS": "1",  # Half the time: without it TensorFlow imports Keras 3.
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",  # Two workers may share one GPU.
        "OMP_NUM_THREADS": "1",
    }
    return {**defaults, **kept, "TFDIST_START_TIMEOUT_S": f"{_START_LIMIT_S:.0f}"}


async def _try_grpc() -> list[Ended | None]:
    environ = trial_environment(os.environ)
    command = python_command(_MODULE, "grpc")
    with ReservedPorts(_NUM_WORKERS) as reserved:
        cluster = Cluster(jobs={"worker": tuple(f"127.0.0.1:{port}" for port in reserved.ports)})
        configs = [
            format_tf_config(cluster, Task(type="worker", index=index))
            for index in range(_NUM_WORKERS)
        ]
        return await run_together(
            [(command, {**environ, "TF_CONFIG": config}) for config in configs],
            limit_s=_TRIAL_LIMIT_S,
        )


async def _try_horovod() -> list[Ended | None]:
    mpirun = find_mpirun()
    if mpirun is None:
        raise FileNotFoundError("there is no mpirun")
    environ = mpirun_environment(mpirun, trial_environment(os.environ))
    command = mpirun_command(mpirun, _NUM_WORKERS, python_command(_MODULE, "horovod"))
    return [await run_child(command, environ, limit_s=_TRIAL_LIMIT_S)]


def _reason(ended: Ended) -> str:
    """Returns the line that says most: an error's own, before what mpirun adds to it."""
    lines = [line.strip() for line in ended.stderr.splitlines()]
    errors = [line for line in lines if line.split(":")[0].endswith("Error")]
    return (errors[0] if errors else ended.last_line)[:300]


def _answer(ended: Ended) -> dict[str, object]:
    lines = [line for line in ended.stdout.splitlines() if line.startswith("{")]
    try:
        return dict(json.loads(lines[-1])) if lines else {}
    except ValueError:  # Two ranks' lines in one.
        return {}
