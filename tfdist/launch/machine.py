"""What a machine has for its workers: processor cores and GPUs."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_NUMA_NODES = Path("/sys/devices/system/node")
_NVIDIA_GPUS = Path("/proc/driver/nvidia/gpus")


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What the workers of one machine share.

    Attributes:
      cores: The processor cores that they may use.
      numa_nodes: The same cores by memory that is near to them, one tuple a node.
      gpus: The names that CUDA_VISIBLE_DEVICES may list.
    """

    cores: tuple[int, ...]
    numa_nodes: tuple[tuple[int, ...], ...]
    gpus: tuple[str, ...] = ()


def look_at_machine(environ: Mapping[str, str] = os.environ) -> Machine:
    """Returns what this process may use of this machine."""
    cores = tuple(sorted(os.sched_getaffinity(0)))
    return Machine(cores=cores, numa_nodes=_numa_nodes(cores), gpus=_gpus(environ))


def _numa_nodes(cores: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    nodes = []
    for path in sorted(_NUMA_NODES.glob("node[0-9]*/cpulist")):
        own = _read_cpu_list(path.read_text())
        nodes.append(tuple(core for core in cores if core in own))
    return tuple(node for node in nodes if node) or (cores,)


def _read_cpu_list(text: str) -> set[int]:
    """Reads "0-3,8": what Linux calls a list of processors."""
    found: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first:
            found.update(range(int(first), int(last or first) + 1))
    return found


def _gpus(environ: Mapping[str, str]) -> tuple[str, ...]:
    count = len(list(_NVIDIA_GPUS.glob("*"))) if _NVIDIA_GPUS.is_dir() else 0
    if "CUDA_VISIBLE_DEVICES" not in environ:
        return tuple(str(number) for number in range(count))
    names = [name.strip() for name in environ["CUDA_VISIBLE_DEVICES"].split(",")]
    # CUDA reads the list up to the first name that is none.
    valid = []
    for name in names:
        if not re.fullmatch(r"[0-9]+|(GPU|MIG)-.+", name):
            break
        valid.append(name)
    return tuple(valid) if count else ()
