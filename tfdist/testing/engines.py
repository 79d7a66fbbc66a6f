"""Engines that connect the workers of a test, and the environment of the workers."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from tfdist.cluster.instance_variables import OF_ONE_RUN
from tfdist.cluster.tasks import Cluster, Task
from tfdist.cluster.tf_config import format_tf_config
from tfdist.launch.machine.mpi import horovod_problem

_ENGINES = ("grpc", "horovod", "none")

_DEFAULTS = {
    "TF_CPP_MIN_LOG_LEVEL": "2",  # warnings and errors
    "TF_USE_LEGACY_KERAS": "1",
    "OMP_NUM_THREADS": "1",  # the workers share the cores
    "HOROVOD_CYCLE_TIME": "5",  # ms; with a strategy's 0.1 a rank takes half a core while it waits
    "PYTHONUNBUFFERED": "1",  # a killed script leaves its last line
}
# The test's own process may be part of a run.
_MEMBERSHIP = (*OF_ONE_RUN, "SLURM_")


class EngineMissingError(RuntimeError):
    """A program or package that the engine of a run needs is not installed."""


def check_request(engine: str, num_workers: int | None) -> int:
    """Returns the number of workers, after checking that the engine can run them here."""
    if engine not in _ENGINES:
        raise ValueError(f"engine is {engine!r}; it must be one of {', '.join(_ENGINES)}.")
    if num_workers is None:
        num_workers = 1 if engine == "none" else 2
    if num_workers < 1:
        raise ValueError(f"num_workers is {num_workers}; it must be at least 1.")
    if engine == "none" and num_workers != 1:
        raise ValueError(
            f"num_workers is {num_workers} with engine 'none', which connects no workers. "
            "Leave it out, or choose engine 'grpc' or 'horovod'."
        )
    problem = engine_problem(engine)
    if problem is not None:
        raise EngineMissingError(problem)
    return num_workers


def engine_problem(engine: str) -> str | None:
    """Returns why runs over this engine cannot be started here, or None if they can.

    Args:
      engine: "grpc", "horovod" or "none".
    """
    return horovod_problem() if engine == "horovod" else None


def worker_environment(
    environ: Mapping[str, str], additions: Mapping[str, str], temporary_folder: Path
) -> dict[str, str]:
    """Returns the environment of every worker, before the variables of its engine.

    The test's own environment overrides the defaults, and the run's additions override both.
    """
    kept = {name: value for name, value in environ.items() if not name.startswith(_MEMBERSHIP)}
    if "OMPI_COMM_WORLD_RANK" in environ:  # mpirun's settings for its ranks, not the user's
        kept = {name: value for name, value in kept.items() if not name.startswith("OMPI_")}
    return {**_DEFAULTS, **kept, "TMPDIR": os.fspath(temporary_folder), **additions}


def tf_configs(ports: Sequence[int]) -> list[str]:
    """Returns each worker's TF_CONFIG for a cluster of local workers on these ports."""
    cluster = Cluster(jobs={"worker": tuple(f"127.0.0.1:{port}" for port in ports)})
    return [
        format_tf_config(cluster, Task(type="worker", index=index)) for index in range(len(ports))
    ]
