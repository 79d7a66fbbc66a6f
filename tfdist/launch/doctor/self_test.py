"""Two real workers on this machine, joined over an engine, that train one step."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tfdist.cluster import Cluster, Task, format_tf_config
from tfdist.cluster.instance_variables import OF_ONE_RUN
from tfdist.cluster.ranks import OF_OTHER_LAUNCHERS
from tfdist.launch.doctor.children import Ended, run_child, run_together
from tfdist.launch.doctor.finding import Finding, broken, good
from tfdist.launch.free_ports import ReservedPorts
from tfdist.launch.mpi import find_mpirun, mpirun_command, mpirun_environment
from tfdist.launch.python_command import python_command

_MODULE = "tfdist.strategies.self_test"
_NUM_WORKERS = 2
_LIMIT_S = 90.0
_START_LIMIT_S = 40.0  # They start together, but a busy machine may start one late.
ENGINES = {"grpc": "gRPC", "horovod": "Horovod"}
_BY_HAND = {
    "grpc": f"tfdist run --num-instances 2 -- {sys.executable} -m {_MODULE} grpc",
    "horovod": f"mpirun -np 2 {sys.executable} -m {_MODULE} horovod",
}


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
            [(command, {**environ, "TF_CONFIG": config}) for config in configs], limit_s=_LIMIT_S
        )


async def _try_horovod() -> list[Ended | None]:
    mpirun = find_mpirun()
    if mpirun is None:
        raise FileNotFoundError("there is no mpirun")
    environ = mpirun_environment(mpirun, trial_environment(os.environ))
    command = mpirun_command(mpirun, _NUM_WORKERS, python_command(_MODULE, "horovod"))
    return [await run_child(command, environ, limit_s=_LIMIT_S)]


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
