"""Processor cores and GPUs of a machine, and one worker's share of them."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_NUMA_NODES = Path("/sys/devices/system/node")
_NVIDIA_GPUS = Path("/proc/driver/nvidia/gpus")

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TF_NUM_INTRAOP_THREADS")
_GPUS = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The cores and GPUs that the workers of one machine share.

    Attributes:
      numa_nodes: The same cores grouped by NUMA node, one tuple per node.
      gpus: The names that CUDA_VISIBLE_DEVICES may list.
    """

    cores: tuple[int, ...]
    numa_nodes: tuple[tuple[int, ...], ...]
    gpus: tuple[str, ...] = ()


def look_at_machine(environ: Mapping[str, str] = os.environ) -> Machine:
    """Returns the cores and GPUs of this machine that this process may use."""
    cores = tuple(sorted(os.sched_getaffinity(0)))
    return Machine(cores=cores, numa_nodes=_numa_nodes(cores), gpus=_gpus(environ))


def _numa_nodes(cores: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    nodes = []
    for path in sorted(_NUMA_NODES.glob("node[0-9]*/cpulist")):
        own = _read_cpu_list(path.read_text())
        nodes.append(tuple(core for core in cores if core in own))
    return tuple(node for node in nodes if node) or (cores,)


def _read_cpu_list(text: str) -> set[int]:
    """Reads a CPU list in the format of Linux's "cpulist" files, such as "0-3,8"."""
    found: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first:
            found.update(range(int(first), int(last or first) + 1))
    return found


def _gpus(environ: Mapping[str, str]) -> tuple[str, ...]:
    count = num_nvidia_gpus()
    if _GPUS not in environ:
        return tuple(str(number) for number in range(count))
    names = (name.strip() for name in environ[_GPUS].split(","))
    # CUDA reads the list up to the first invalid name.
    valid = itertools.takewhile(re.compile(r"[0-9]+|(GPU|MIG)-.+").fullmatch, names)
    return tuple(valid) if count else ()


def num_nvidia_gpus() -> int:
    """Returns the number of GPUs of the NVIDIA driver; 0 without the driver."""
    return len(list(_NVIDIA_GPUS.glob("*")))


@dataclass(frozen=True, kw_only=True)
class Share:
    """One worker's share of its machine.

    Attributes:
      bind: "cores" divides the cores and binds each worker to its part. "numa" binds each worker
        to the cores of one NUMA node, in turn. "none" binds no worker.
      threads: The number of compute threads of the worker; None for one per core of its part.
      num_devices: The number of GPUs that the worker requests.
    """

    num_workers: int
    index: int
    bind: str
    threads: int | None
    num_devices: int


def bound_cores(share: Share, machine: Machine) -> tuple[int, ...] | None:
    """Returns the cores to which the worker is bound; None leaves it unbound.

    With fewer cores than workers, "cores" leaves all workers unbound, because the kernel shares
    the cores better than a fixed binding.
    """
    if share.bind == "numa":
        return machine.numa_nodes[share.index % len(machine.numa_nodes)]
    if share.bind == "none" or len(machine.cores) < share.num_workers:
        return None
    return tuple(_part(machine.cores, share.num_workers, share.index))


def share_environment(share: Share, machine: Machine, environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that limit the worker to its share.

    A number of threads that the user has set in the environment is kept, unless `share.threads` is
    set. The GPUs are taken from those that are visible to this process. If there are fewer than
    requested, workers share GPUs, and TensorFlow allocates a GPU's memory as needed instead of all
    at once.
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
            own = tuple(dict.fromkeys(machine.gpus[place % len(machine.gpus)] for place in places))
            found["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"
        found[_GPUS] = ",".join(own)
    return found


def _part(things: Sequence[int], num_parts: int, index: int) -> Sequence[int]:
    """Returns one of `num_parts` contiguous parts; their sizes differ by at most one."""
    first, last = (len(things) * place // num_parts for place in (index, index + 1))
    return things[first:last]
