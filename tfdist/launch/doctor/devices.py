"""GPUs, processor cores and memory that a worker would have."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import psutil

from tfdist.launch.doctor.finding import Finding, absent, broken, good, pip_install
from tfdist.launch.doctor.survey import Survey

_GIB = 1 << 30
# A worker that has imported TensorFlow and trains a small model takes 0.5 GiB.
_LEAST_MEMORY_BYTES = _GIB


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What the kernel lets this process have.

    Attributes:
      num_driver_gpus: GPUs that the NVIDIA driver has.
      visible_gpus: The value of CUDA_VISIBLE_DEVICES; None if it is not set.
      machine_cores: Cores of the machine.
      allowed_cores: Cores that this process may run on.
      quota_cores: How many cores' time the control group gives it; None without a limit.
      memory_bytes: The machine's memory, or the control group's limit if that is less.
      free_memory_bytes: How much of it can still be had.
    """

    num_driver_gpus: int = 0
    visible_gpus: str | None = None
    machine_cores: int
    allowed_cores: int
    quota_cores: float | None = None
    memory_bytes: int
    free_memory_bytes: int


def look_at_machine() -> Machine:
    """Asks the kernel."""
    memory = psutil.virtual_memory()
    total, free = memory.total, memory.available
    # A container sees its own control group there: of version 2, or of version 1.
    group = Path("/sys/fs/cgroup")
    limit = _number(group / "memory.max", group / "memory/memory.limit_in_bytes")
    used = _number(group / "memory.current", group / "memory/memory.usage_in_bytes")
    if limit is not None and limit < total:
        total, free = limit, min(free, limit - (used or 0))
    quota = _text(group / "cpu.max") or " ".join(
        _text(group / f"cpu/cpu.cfs_{name}_us").strip() for name in ("quota", "period")
    )
    drivers = Path("/proc/driver/nvidia/gpus")
    return Machine(
        num_driver_gpus=len(list(drivers.iterdir())) if drivers.is_dir() else 0,
        visible_gpus=os.environ.get("CUDA_VISIBLE_DEVICES"),
        machine_cores=os.cpu_count() or 1,
        allowed_cores=len(os.sched_getaffinity(0)),
        quota_cores=parse_quota(quota),
        memory_bytes=total,
        free_memory_bytes=free,
    )


def judge_devices(machine: Machine, survey: Survey) -> list[Finding]:
    """Says on what a worker would compute."""
    findings = [] if survey.problem else [_judge_gpus(machine, survey)]
    return [*findings, _judge_cores(machine), _judge_memory(machine)]


def parse_quota(text: str) -> float | None:
    """Reads a control group's quota and period: "150000 100000" is one core and a half."""
    quota, _, period = text.partition(" ")
    return int(quota) / int(period) if quota.isdigit() and period.strip().isdigit() else None


def _judge_gpus(machine: Machine, survey: Survey) -> Finding:
    if survey.gpus:
        names = ", ".join(
            f"{survey.gpus.count(name)} x {name}" for name in dict.fromkeys(survey.gpus)
        )
        return good(f"TensorFlow sees {names}")
    without = "no GPU: workers compute on a second logical CPU (CPU:1)"
    if not machine.num_driver_gpus:
        return absent(without)
    there = f"the driver has {machine.num_driver_gpus} GPUs and TensorFlow sees none"
    if machine.visible_gpus is not None and not survey.gpus:
        return absent(
            f'{there}: CUDA_VISIBLE_DEVICES is "{machine.visible_gpus}"',
            "To use them run: unset CUDA_VISIBLE_DEVICES",
        )
    return broken(there, pip_install(f"tensorflow[and-cuda]=={survey.tensorflow}"))


def _judge_cores(machine: Machine) -> Finding:
    cores = float(machine.allowed_cores)
    text = f"{machine.allowed_cores} of the machine's {machine.machine_cores} cores are ours"
    if machine.quota_cores is not None:
        text += f", with the time of {machine.quota_cores:g} (control group)"
        cores = min(cores, machine.quota_cores)
    if cores < 2:
        return absent(f"{text}: two workers on this machine take turns")
    return good(text)


def _judge_memory(machine: Machine) -> Finding:
    free, total = (size / _GIB for size in (machine.free_memory_bytes, machine.memory_bytes))
    text = f"{free:.1f} GiB of {total:.1f} GiB memory are free"
    if machine.free_memory_bytes < _LEAST_MEMORY_BYTES:
        return broken(
            f"{text}: two workers need about 1 GiB",
            "End other programs, or raise this container's memory limit. See: ps aux --sort=-rss",
        )
    return good(text)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _number(*paths: Path) -> int | None:
    """Returns the number in the first of the files that holds one."""
    texts = (_text(path).strip() for path in paths)
    return next((int(text) for text in texts if text.isdigit()), None)
