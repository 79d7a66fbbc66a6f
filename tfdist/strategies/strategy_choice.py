"""The strategy for however this process was started: one script, whatever stands in front of it."""

from __future__ import annotations

from typing import TypeAlias

from tfdist.cluster.environment import find_engine
from tfdist.strategies.compression import Compression, find_half
from tfdist.strategies.horovod import HorovodStrategy, initialize_horovod
from tfdist.strategies.local import LocalStrategy
from tfdist.strategies.multi_worker import MultiWorkerStrategy

RunStrategy: TypeAlias = "HorovodStrategy | LocalStrategy | MultiWorkerStrategy"


def strategy_for_run(
    device: str | None = None,
    variables_on_host: bool = True,
    *,
    num_replicas: int | None = None,
    compression: Compression | None = None,
) -> RunStrategy:
    """Makes the strategy that this process's start asks for.

    `MultiWorkerStrategy` where TF_CONFIG or a Slurm step lists the workers, else `HorovodStrategy`
    where `mpirun` or `horovodrun` started several processes, else `LocalStrategy`: alone, and under
    a launcher of one process, which needs no Horovod. An evaluator task gets a
    `MultiWorkerStrategy`, whose one worker it is.

    Args:
      device: As in those strategies.
      variables_on_host: As there.
      num_replicas: As there.
      compression: As there; a process on its own sends no gradients.

    Raises:
      ValueError: If `compression` or `num_replicas` is something else.
      ClusterError: If what the process was started with is malformed or contradicts itself.
      HorovodNotFoundError: If one of these started it, and Horovod or its library is missing.
      RendezvousError: If this worker's port is in use.
      DeviceError: If a device does not exist.
    """
    find_half(compression)  # Refused in every run, also in one that sends no gradients.
    engine = find_engine()
    if engine == "horovod":
        return HorovodStrategy(
            device, variables_on_host, num_replicas=num_replicas, compression=compression
        )
    if engine == "grpc":
        return MultiWorkerStrategy(
            None, device, variables_on_host, num_replicas=num_replicas, compression=compression
        )
    return LocalStrategy(num_replicas, device, variables_on_host)


def join_run() -> None:
    """Joins the other processes of an MPI job; does nothing in a run without one.

    A collective of that job. A strategy does the same, so a program needs this only to talk over
    Horovod before it makes one.

    Raises:
      HorovodNotFoundError: If Horovod or its MPI library is missing.
    """
    if find_engine() == "horovod":
        initialize_horovod()
