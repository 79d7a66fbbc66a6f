"""Checks of this machine: GPUs, cores, memory, folders, ports, and proxies."""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from tfdist.launch.doctor.probes import Survey
from tfdist.launch.doctor.report import Finding, absent, broken, good, pip_install
from tfdist.launch.machine.ports import ReservedPorts

_GIB = 1 << 30
# A worker that has imported TensorFlow and trains a small model takes 0.5 GiB.
_LEAST_MEMORY_BYTES = _GIB

_LEAST_BYTES = 100 << 20
_LITTLE_BYTES = _GIB

_NAME_LIMIT_S = 3.0
# In this order gRPC takes the first that is set.
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")


@dataclass(frozen=True, kw_only=True)
class MachineResources:
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


def look_at_machine() -> MachineResources:
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
    return MachineResources(
        num_driver_gpus=len(list(drivers.iterdir())) if drivers.is_dir() else 0,
        visible_gpus=os.environ.get("CUDA_VISIBLE_DEVICES"),
        machine_cores=os.cpu_count() or 1,
        allowed_cores=len(os.sched_getaffinity(0)),
        quota_cores=parse_quota(quota),
        memory_bytes=total,
        free_memory_bytes=free,
    )


def judge_devices(machine: MachineResources, survey: Survey) -> list[Finding]:
    """Says on what a worker would compute."""
    findings = [] if survey.problem else [_judge_gpus(machine, survey)]
    return [*findings, _judge_cores(machine), _judge_memory(machine)]


def parse_quota(text: str) -> float | None:
    """Reads a control group's quota and period: "150000 100000" is one core and a half."""
    quota, _, period = text.partition(" ")
    return int(quota) / int(period) if quota.isdigit() and period.strip().isdigit() else None


def _judge_gpus(machine: MachineResources, survey: Survey) -> Finding:
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


def _judge_cores(machine: MachineResources) -> Finding:
    cores = float(machine.allowed_cores)
    text = f"{machine.allowed_cores} of the machine's {machine.machine_cores} cores are ours"
    if machine.quota_cores is not None:
        text += f", with the time of {machine.quota_cores:g} (control group)"
        cores = min(cores, machine.quota_cores)
    if cores < 2:
        return absent(f"{text}: two workers on this machine take turns")
    return good(text)


def _judge_memory(machine: MachineResources) -> Finding:
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


@dataclass(frozen=True, kw_only=True)
class Folder:
    """A folder that something is to be written to.

    Attributes:
      purpose: What for: "checkpoints (--model-dir)".
      path: Where it is, as the user wrote it.
      is_remote: Whether it is on a file system that only TensorFlow reads: "gs://...".
      problem: Why it cannot be written to; "" if it can.
      free_bytes: Free space there.
      is_new: Whether it is not there yet, so that its parent was looked at.
    """

    purpose: str
    path: str
    is_remote: bool = False
    problem: str = ""
    free_bytes: int = 0
    is_new: bool = False


def look_at_folders(*, log_dir: str | None, model_dir: str | None) -> list[Folder]:
    """Writes a file into each, and takes it away again."""
    folders = [
        look_at_folder("the current folder", _current_folder(), must_exist=True),
        look_at_folder("temporary files (TMPDIR)", _temporary_folder(), must_exist=True),
    ]
    if log_dir is not None:
        folders.append(look_at_folder("logs (--log-dir)", log_dir))
    if model_dir is not None:
        folders.append(look_at_folder("checkpoints (--model-dir)", model_dir))
    return folders


def look_at_folder(purpose: str, path: str, *, must_exist: bool = False) -> Folder:
    """Looks at one folder, or at the nearest one above that exists."""
    if "://" in path:
        return Folder(purpose=purpose, path=path, is_remote=True)
    nearest = Path(path)
    while not must_exist and not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    try:
        with tempfile.TemporaryFile(dir=nearest) as file:
            file.write(b"tfdist")
        free_bytes = shutil.disk_usage(nearest).free
    except OSError as error:
        return Folder(purpose=purpose, path=path, problem=error.strerror or str(error))
    return Folder(purpose=purpose, path=path, free_bytes=free_bytes, is_new=not Path(path).exists())


def judge_folders(folders: Sequence[Folder]) -> list[Finding]:
    """Says which of them can be written to."""
    return [_judge(folder) for folder in folders]


def _judge(folder: Folder) -> Finding:
    text = f"{folder.purpose}: {folder.path}"
    if folder.is_remote:
        return absent(f"{text}: only folders of this machine are looked at")
    quoted = shlex.quote(folder.path)
    if folder.problem:
        return broken(
            f"{text} cannot be written to: {folder.problem}",
            f"Take another folder, or run: mkdir -p {quoted} && chmod u+rwx {quoted}",
        )
    free = f"{folder.free_bytes / _GIB:.1f} GiB free"
    if folder.free_bytes < _LEAST_BYTES:
        return broken(f"{text}: {free}", f"Make room. What is large there: du -xh -d1 {quoted}")
    if folder.free_bytes < _LITTLE_BYTES:
        return absent(f"{text}: only {free}")
    return good(f"{text}: {free}{', will be made' if folder.is_new else ''}")


def _current_folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:  # Somebody removed it.
        return os.curdir


def _temporary_folder() -> str:
    # Not tempfile.gettempdir(): it passes over a TMPDIR that does not work.
    return os.environ.get("TMPDIR") or tempfile.gettempdir()


@dataclass(frozen=True, kw_only=True)
class Network:
    """What a worker finds.

    Attributes:
      port_problem: Why no port of 127.0.0.1 can be used; "" if one can.
      has_ipv6: Whether ::1 can be used.
      proxy: The variable by which gRPC would go through a proxy; None without one. (Its value may
        have a password.)
      exempts_workers: Whether the user set no_grpc_proxy.
      host_name: This machine's name.
      host_addresses: Where that name leads; none if nowhere.
    """

    port_problem: str = ""
    has_ipv6: bool
    proxy: str | None = None
    exempts_workers: bool = False
    host_name: str
    host_addresses: tuple[str, ...]


def look_at_network(environ: Mapping[str, str] = os.environ) -> Network:
    """Tries ports, and looks up this machine's own name, for three seconds at most."""
    name = socket.gethostname()
    return Network(
        port_problem=_try_port(socket.AF_INET, "127.0.0.1"),
        has_ipv6=not _try_port(socket.AF_INET6, "::1"),
        proxy=next((variable for variable in _PROXIES if environ.get(variable)), None),
        exempts_workers=bool(environ.get("no_grpc_proxy")),
        host_name=name,
        host_addresses=_addresses(name),
    )


def judge_network(network: Network) -> list[Finding]:
    """Says whether workers can reach each other."""
    findings = [
        broken(
            f"no port of 127.0.0.1 can be used: {network.port_problem}",
            "Run as root: ip link set lo up",
        )
        if network.port_problem
        else good("ports of 127.0.0.1 can be used")
    ]
    findings.append(
        good("IPv6 works on this machine (::1)")
        if network.has_ipv6
        else absent("no IPv6 on this machine")
    )
    if network.proxy is not None:
        how = "no_grpc_proxy is set, and tfdist adds the workers' hosts"
        if not network.exempts_workers:
            how = "tfdist sets no_grpc_proxy, so that workers reach each other directly"
        findings.append(good(f"{network.proxy} is set: {how}"))
    if network.host_addresses:
        addresses = ", ".join(network.host_addresses)
        findings.append(good(f"this host's name, {network.host_name}, leads to {addresses}"))
    else:
        findings.append(
            absent(
                f"this host's name, {network.host_name}, leads nowhere; runs over several hosts "
                "need it",
                f"Run as root: echo '127.0.1.1 {network.host_name}' >> /etc/hosts",
            )
        )
    return findings


def _try_port(family: socket.AddressFamily, host: str) -> str:
    """Returns why a worker could not listen there and be reached; "" if it can."""
    try:
        with ReservedPorts(1) as reserved, socket.socket(family) as listener:
            listener.bind((host, reserved.ports[0]))
            listener.listen(1)
            with socket.create_connection((host, reserved.ports[0]), timeout=_NAME_LIMIT_S):
                return ""
    except OSError as error:
        return str(error)


def _addresses(name: str) -> tuple[str, ...]:
    found: list[str] = []

    def look_up() -> None:
        try:
            answers = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except OSError:
            return
        found.extend(dict.fromkeys(str(answer[4][0]) for answer in answers))

    # The system's look-up has no limit of its own.
    thread = threading.Thread(target=look_up, daemon=True)
    thread.start()
    thread.join(_NAME_LIMIT_S)
    return tuple(found)
