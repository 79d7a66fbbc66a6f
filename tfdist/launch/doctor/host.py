"""Resources of this machine: GPUs, processor cores, memory, and folders to write to."""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tfdist.launch.doctor.children import answer_within
from tfdist.launch.doctor.packages import TensorFlowFacts
from tfdist.launch.doctor.report import Finding, absent, broken, good, pip_install
from tfdist.launch.machine.cores_and_gpus import num_nvidia_gpus
from tfdist.process.memory import CONTROL_GROUP, read_text, total_and_free_bytes

_GIB = 1 << 30
# A worker that has imported TensorFlow and trains a small model takes 0.5 GiB.
_LEAST_MEMORY_BYTES = _GIB
_LEAST_DISK_BYTES, _LITTLE_DISK_BYTES = 100 << 20, _GIB
_FOLDER_LIMIT_S = 10.0  # A network file system may never answer.


def check_devices(facts: TensorFlowFacts) -> Iterator[Finding]:
    """Yields the GPUs, cores and memory that workers can use."""
    if not facts.problem:
        num_gpus = num_nvidia_gpus()
        yield judge_gpus(num_gpus, os.environ.get("CUDA_VISIBLE_DEVICES"), facts)
    group = CONTROL_GROUP
    quota = read_text(group / "cpu.max") or " ".join(
        read_text(group / f"cpu/cpu.cfs_{name}_us").strip() for name in ("quota", "period")
    )
    yield judge_cores(len(os.sched_getaffinity(0)), os.cpu_count() or 1, parse_quota(quota))
    total, free = total_and_free_bytes()
    yield judge_memory(free, total)


def judge_gpus(num_gpus: int, visible_gpus: str | None, facts: TensorFlowFacts) -> Finding:
    """Returns the devices of workers, by the driver's GPUs and those that TensorFlow sees."""
    if facts.gpus:
        counts = {name: facts.gpus.count(name) for name in facts.gpus}
        seen = ", ".join(f"{count} x {name}" for name, count in counts.items())
        return good(f"TensorFlow sees {seen}")
    if not num_gpus:
        return absent("no GPU: workers compute on a second logical CPU (CPU:1)")
    text = f"the driver has {num_gpus} GPUs and TensorFlow sees none"
    if visible_gpus is not None:
        text += f': CUDA_VISIBLE_DEVICES is "{visible_gpus}"'
        return absent(text, "To use them run: unset CUDA_VISIBLE_DEVICES")
    return broken(text, pip_install(f"tensorflow[and-cuda]=={facts.tensorflow}"))


def judge_cores(allowed: int, total: int, quota: float | None) -> Finding:
    """Returns the cores of this process; `quota` is the control group's limit."""
    text = f"{allowed} of the machine's {total} cores are ours"
    if quota is not None:
        text += f", with the time of {quota:g} (control group)"
    if min(allowed, quota or allowed) < 2:
        return absent(f"{text}: two workers on this machine take turns")
    return good(text)


def judge_memory(free_bytes: int, total_bytes: int) -> Finding:
    """Returns whether two workers have enough memory."""
    text = f"{free_bytes / _GIB:.1f} GiB of {total_bytes / _GIB:.1f} GiB memory are free"
    if free_bytes < _LEAST_MEMORY_BYTES:
        fix = "End other programs, or raise this container's memory limit. See: ps aux --sort=-rss"
        return broken(f"{text}: two workers need about 1 GiB", fix)
    return good(text)


def parse_quota(text: str) -> float | None:
    """Reads a control group's quota and period: "150000 100000" is one and a half cores."""
    quota, _, period = text.partition(" ")
    return int(quota) / int(period) if quota.isdigit() and period.strip().isdigit() else None


def check_folders(log_dir: str | None, model_dir: str | None) -> list[Finding]:
    """Writes a temporary file to each folder of a run."""
    try:
        current = os.getcwd()
    except FileNotFoundError:  # It was removed.
        current = os.curdir
    # Not tempfile.gettempdir() alone: it skips a TMPDIR that does not work.
    temporary = os.environ.get("TMPDIR") or tempfile.gettempdir()
    given = {"logs (--log-dir)": log_dir, "checkpoints (--model-dir)": model_dir}
    return [
        check_folder("the current folder", current, must_exist=True),
        check_folder("temporary files (TMPDIR)", temporary, must_exist=True),
        *(check_folder(name, path) for name, path in given.items() if path is not None),
    ]


def check_folder(purpose: str, path: str, *, must_exist: bool = False) -> Finding:
    """Writes to a folder, or to its nearest parent that exists."""

    def write() -> Finding:
        nearest = Path(path)
        try:
            while not must_exist and not nearest.exists() and nearest != nearest.parent:
                nearest = nearest.parent
            with tempfile.TemporaryFile(dir=nearest) as file:
                file.write(b"tfdist")
            free, is_new = shutil.disk_usage(nearest).free, not Path(path).exists()
        except OSError as error:
            return judge_folder(purpose, path, problem=error.strerror or str(error))
        return judge_folder(purpose, path, free_bytes=free, is_new=is_new)

    if "://" in path:
        return absent(f"{purpose}: {path}: only folders of this machine are looked at")
    late = judge_folder(purpose, path, problem="no answer")
    return answer_within(_FOLDER_LIMIT_S, write, late)


def judge_folder(
    purpose: str, path: str, *, problem: str = "", free_bytes: int = 0, is_new: bool = False
) -> Finding:
    """Returns whether a folder can be written to; one that `is_new` does not exist yet."""
    text, quoted = f"{purpose}: {path}", shlex.quote(path)
    free = f"{free_bytes / _GIB:.1f} GiB free"
    if problem:
        fix = f"Take another folder, or run: mkdir -p {quoted} && chmod u+rwx {quoted}"
        return broken(f"{text} cannot be written to: {problem}", fix)
    if free_bytes < _LEAST_DISK_BYTES:
        return broken(f"{text}: {free}", f"Make room. What is large there: du -xh -d1 {quoted}")
    if free_bytes < _LITTLE_DISK_BYTES:
        return absent(f"{text}: only {free}")
    return good(f"{text}: {free}{', will be made' if is_new else ''}")
