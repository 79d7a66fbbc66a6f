"""The contenders of the benchmark of step times: the bounds, tfdist, and the peers."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import peers
from peers import OLD_PYTHON, torch_python
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
from turn_taking import Contender, mpirun, program, tf_configs, torch_environ

NUM_WORKERS = 2


def make_contenders(work: str, names: Sequence[str] | None = None) -> Iterator[Contender]:
    """Yields the contenders for a model, in the order of their turns.

    Start each before the next one is asked for: its ports may be taken later.

    Args:
      work: The model.
      names: Those to yield; None for all.
    """
    return (one for one in _all(work) if names is None or one.name in names)


def _all(work: str) -> Iterator[Contender]:
    yield Contender(name=IDEAL, commands=_each("plain.py", work))
    yield _over_grpc(BARE["gRPC"], _each("bare_reduction.py", work, "grpc"))
    yield _over_grpc(OURS["gRPC"], _each("host_call.py", work, "grpc"))
    yield _over_mpi(BARE["Horovod"], program("bare_reduction.py", work, "0", "horovod"))
    yield _over_mpi(OURS["Horovod"], program("host_call.py", work, "0", "horovod"))
    yield _over_mpi(HOROVOD_TAPE, program("horovod_tape.py", work))
    yield _over_grpc(MIRRORED_STEP, _each("mirrored_step.py", work))
    yield _over_grpc(MIRRORED_FIT, _each("mirrored_fit.py", work))
    ddp = _each("torch_ddp.py", work, python=torch_python())
    yield Contender(name=TORCH_DDP, commands=ddp, environ=[torch_environ(NUM_WORKERS)])
    yield _over_grpc(OLD_ESTIMATOR, _each("old_estimator.py", work, python=str(OLD_PYTHON)))


def why_missing(name: str) -> str | None:
    """Says in one line why a contender cannot be started, with the fix; None if it can."""
    return peers.why_missing(
        name,
        of_horovod=(BARE["Horovod"], OURS["Horovod"], HOROVOD_TAPE),
        of_torch=(TORCH_DDP,),
        of_old_tensorflow=(OLD_ESTIMATOR,),
    )


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
