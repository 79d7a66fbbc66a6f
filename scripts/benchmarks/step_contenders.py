"""The contenders of the benchmark of step times: the bounds, tfdist, and the peers."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from step_figures import (
    BARE,
    HOROVOD_TAPE,
    IDEAL,
    MIRRORED_FIT,
    MIRRORED_STEP,
    OLD_ESTIMATOR,
    OURS,
    TORCH_DDP,
)
from turn_taking import Contender, free_ports, mpirun, program, tf_configs

NUM_WORKERS = 2
OLD_PYTHON = Path(sys.prefix, "tensorflow-2.15", "bin", "python")


def make_contenders(work: str) -> Iterator[Contender]:
    """Yields all contenders for a model, in the order of their turns.

    Start each before the next one is asked for: its ports may be taken later.
    """
    yield Contender(name=IDEAL, commands=_each("plain.py", work))
    yield _over_grpc(BARE["gRPC"], _each("bare_reduction.py", work, "grpc"))
    yield _over_grpc(OURS["gRPC"], _each("host_call.py", work, "grpc"))
    yield _over_mpi(BARE["Horovod"], program("bare_reduction.py", work, "0", "horovod"))
    yield _over_mpi(OURS["Horovod"], program("host_call.py", work, "0", "horovod"))
    yield _over_mpi(HOROVOD_TAPE, program("horovod_tape.py", work))
    yield _over_grpc(MIRRORED_STEP, _each("mirrored_step.py", work))
    yield _over_grpc(MIRRORED_FIT, _each("mirrored_fit.py", work))
    ddp = _each("torch_ddp.py", work)
    yield Contender(name=TORCH_DDP, commands=ddp, environ=[_torch_environ()])
    yield _over_grpc(OLD_ESTIMATOR, _each("old_estimator.py", work, python=str(OLD_PYTHON)))


def why_missing(name: str) -> str | None:
    """Says in one line why a contender cannot be started, with the fix; None if it can."""
    if name in (BARE["Horovod"], OURS["Horovod"], HOROVOD_TAPE) and not _is_installed("horovod"):
        return f"{name}: Horovod is not installed. Run: tfdist horovod install"
    if name == TORCH_DDP and not _is_installed("torch"):
        return f'{name}: PyTorch is not installed. Install it with pip install ".[benchmark]".'
    if name == OLD_ESTIMATOR and not OLD_PYTHON.exists():
        return f"{name}: TensorFlow 2.15 is not there. Run scripts/old_tensorflow.py."
    return None


def _is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _each(
    script: str, work: str, *arguments: str, python: str = sys.executable
) -> Sequence[Sequence[str]]:
    """Returns the commands of all workers."""
    return [
        program(script, work, str(index), *arguments, python=python) for index in range(NUM_WORKERS)
    ]


def _over_grpc(name: str, commands: Sequence[Sequence[str]]) -> Contender:
    return Contender(name=name, commands=commands, environ=tf_configs(NUM_WORKERS))


def _over_mpi(name: str, command: Sequence[str]) -> Contender:
    return Contender(name=name, commands=[mpirun(NUM_WORKERS, command)])


def _torch_environ() -> dict[str, str]:
    (port,) = free_ports(1)
    return {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(NUM_WORKERS),
        "GLOO_SOCKET_IFNAME": "lo",
    }
