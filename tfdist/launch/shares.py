"""One worker's share of its machine: cores, threads and GPUs, so that workers do not fight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tfdist.launch.machine import Machine

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TF_NUM_INTRAOP_THREADS")
_GPUS = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, kw_only=True)
class Share:
    """Which part of its machine a worker gets.

    Attributes:
      num_workers: How many workers share the machine.
      index: Which of them it is, from 0.
      bind: "cores" divides the cores and binds each worker to its own, "numa" binds the workers in
        turn to the cores of one memory node each, "none" binds none.
      threads: How many threads compute in it; None: as many as it has cores.
      num_devices: How many GPUs it wants.
    """

    num_workers: int
    index: int
    bind: str
    threads: int | None
    num_devices: int


def bound_cores(share: Share, machine: Machine) -> tuple[int, ...] | None:
    """Returns the cores that the worker is bound to; None binds it to none.

    With fewer cores than workers none is bound: the kernel shares them out better than we could.
    """
    if share.bind == "numa":
        return machine.numa_nodes[share.index % len(machine.numa_nodes)]
    if share.bind == "none" or len(machine.cores) < share.num_workers:
        return None
    return tuple(_part(machine.cores, share.num_workers, share.index))


def share_environment(share: Share, machine: Machine, environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that keep the worker to its share.

    A number of threads that the user has set is left alone; the GPUs are taken from those that
    the user has left visible. Where there are fewer GPUs than wanted, workers share them, and none
    takes all of a GPU's memory.
    """
    threads = share.threads or max(1, len(machine.cores) // share.num_workers)
    wanted = _THREADS if share.threads is None else ()
    found = {name: str(threads) for name in _THREADS if not (name in wanted and environ.get(name))}
    if machine.gpus:
        first = share.index * share.num_devices
        if share.num_workers * share.num_devices <= len(machine.gpus):
            own = machine.gpus[first : first + share.num_devices]
        else:
            places = range(first, first + share.num_devices)
            own = tuple(dict.fromkeys(machine.gpus[one % len(machine.gpus)] for one in places))
            found["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"
        found[_GPUS] = ",".join(own)
    return found


def _part(things: Sequence[int], num_parts: int, index: int) -> Sequence[int]:
    """Returns one of so many parts, neighbours, as large as any other or larger by one."""
    first, last = (len(things) * place // num_parts for place in (index, index + 1))
    return things[first:last]
