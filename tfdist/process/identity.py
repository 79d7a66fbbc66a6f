"""The identity of a process: the place in which its number counts, and its start time."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import psutil

# The kernel reports its boot time in whole seconds.
SAME_START_S = 1.5


def own_place() -> str:
    """Returns the scope of this process's number: this boot, and this process namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:  # Not Linux.
        return socket.gethostname()


def started_s(pid: int) -> float | None:
    """Returns the start time of a process in this place, in seconds since the boot.

    None if it has ended.
    """
    booted_s = psutil.boot_time()  # Follows changes of the clock, as does the start time.
    try:
        process = psutil.Process(pid)
        is_gone = process.status() == psutil.STATUS_ZOMBIE
        return None if is_gone else float(process.create_time() - booted_s)
    except psutil.NoSuchProcess:
        return None


def is_running(pid: int, start_s: float) -> bool:
    """Returns whether the process of this number in this place is the one that was started then."""
    found_s = started_s(pid)
    return found_s is not None and abs(found_s - start_s) < SAME_START_S
