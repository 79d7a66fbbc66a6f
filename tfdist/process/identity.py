"""The identity of a process: the place in which its number counts, and its start time.

Files and folders with it in their names tell others whether the process that uses them still runs.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import socket
import time
from collections.abc import Callable
from pathlib import Path

import psutil

# The kernel reports its boot time in whole seconds.
SAME_START_S = 1.5
_OWNED = re.compile(r"(?P<place>[0-9a-f]{16})-(?P<pid>\d+)-(?P<start_s>\d+)-[0-9a-f]{8}")
# A process on another machine cannot be seen from here.
_UNUSED_S = 24 * 3600.0


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


def owned_name() -> str:
    """Returns a new name that tells which process has made it; see `is_abandoned`."""
    start_s = round(started_s(os.getpid()) or 0.0)
    return f"{short_hash(own_place())}-{os.getpid()}-{start_s}-{secrets.token_hex(4)}"


def modified_s(path: Path) -> float:
    """Returns the time at which a file or folder was changed."""
    return path.lstat().st_mtime


def is_abandoned(path: Path, changed_s: Callable[[Path], float] = modified_s) -> bool:
    """Returns whether the process that has named a file or folder has ended.

    Args:
      path: Its path, whose name contains what `owned_name` has returned. Other names are never
        abandoned.
      changed_s: Returns the time of its last change. That counts if the process was one of another
        machine.
    """
    found = _OWNED.search(path.name)
    if found is None:
        return False
    if found["place"] == short_hash(own_place()):
        return not is_running(int(found["pid"]), float(found["start_s"]))
    return time.time() - changed_s(path) > _UNUSED_S


def short_hash(text: str) -> str:
    """Returns 16 hexadecimal digits that stand for a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]
