"""A contender: the commands of its workers, and the variables by which these find each other."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tfdist.launch.machine.mpi import find_mpirun

CONTENDERS = Path(__file__).parent / "contenders"
NUM_WORKERS = 2


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A contender to start."""

    name: str  # For tables.
    # One for each worker; one for all of them if it starts them itself (mpirun).
    commands: Sequence[Sequence[str]]
    # Variables for each of the commands, beside this process's own.
    environ: Sequence[Mapping[str, str]] = ({},)
    num_workers: int = 2  # How many processes will take turns.


def free_ports(count: int) -> list[int]:
    """Returns ports of loopback that are free now."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [int(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports


def program(script: str, *arguments: str, python: str = sys.executable) -> list[str]:
    """Returns the command of a contender's program."""
    return [python, str(CONTENDERS / script), *arguments]


def local_workers(count: int) -> list[str]:
    """Returns the addresses of workers on free ports of this machine."""
    return [f"localhost:{port}" for port in free_ports(count)]


def tf_configs(workers: Sequence[str]) -> list[dict[str, str]]:
    """Returns each worker's TF_CONFIG, from their addresses."""
    return [
        {
            "TF_CONFIG": json.dumps(
                {"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}}
            )
        }
        for index in range(len(workers))
    ]


def torch_environ(num_workers: int) -> dict[str, str]:
    """Returns the variables by which PyTorch's workers find each other over gloo."""
    (port,) = free_ports(1)
    return {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(num_workers),
        "GLOO_SOCKET_IFNAME": "lo",
    }


def mpirun(num_workers: int, command: Sequence[str]) -> list[str]:
    """Returns the command that starts workers over MPI; they pin themselves."""
    options = ("--bind-to", "none", "--oversubscribe", "--allow-run-as-root")
    return [find_mpirun() or "mpirun", "-np", str(num_workers), *options, *command]


def one_process(
    name: str,
    script: str,
    *arguments: str,
    python: str = sys.executable,
    environ: Mapping[str, str] | None = None,
) -> Contender:
    """Returns a contender of one process."""
    command = program(script, *arguments, python=python)
    return Contender(name=name, commands=[command], environ=[environ or {}], num_workers=1)


def separate(
    name: str,
    script: str,
    work: str,
    *arguments: str,
    count: int = NUM_WORKERS,
    python: str = sys.executable,
) -> Contender:
    """Returns workers that know nothing of each other."""
    commands = _each(count, script, work, *arguments, python=python)
    return Contender(name=name, commands=commands, num_workers=count)


def over_grpc(
    name: str, script: str, work: str, *arguments: str, python: str = sys.executable
) -> Contender:
    """Returns two workers that know each other by TF_CONFIG."""
    commands = _each(NUM_WORKERS, script, work, *arguments, python=python)
    return Contender(name=name, commands=commands, environ=tf_configs(local_workers(NUM_WORKERS)))


def over_mpi(name: str, script: str, *arguments: str, count: int = NUM_WORKERS) -> Contender:
    """Returns the ranks of one mpirun; all have the same arguments."""
    command = mpirun(count, program(script, *arguments))
    return Contender(name=name, commands=[command], num_workers=count)


def over_gloo(
    name: str, script: str, work: str, *, python: str, count: int = NUM_WORKERS
) -> Contender:
    """Returns PyTorch's workers."""
    commands = _each(count, script, work, python=python)
    return Contender(
        name=name, commands=commands, environ=[torch_environ(count)], num_workers=count
    )


def _each(count: int, script: str, work: str, *arguments: str, python: str) -> list[list[str]]:
    """Returns the commands of all workers, each with its index."""
    return [program(script, work, str(index), *arguments, python=python) for index in range(count)]
