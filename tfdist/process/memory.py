"""The memory that this process can use: the machine's, within the limit of a control group."""

from __future__ import annotations

from pathlib import Path

import psutil

# A container sees its own group there, of version 1 or 2.
CONTROL_GROUP = Path("/sys/fs/cgroup")


def total_and_free_bytes(group: Path = CONTROL_GROUP) -> tuple[int, int]:
    """Returns the memory of the machine or of the control group, and the free part of it.

    Cached content of files counts as free where the kernel would give it up.
    """
    memory = psutil.virtual_memory()
    total, free = memory.total, memory.available
    limit = _number(group / "memory.max", group / "memory/memory.limit_in_bytes")
    if limit is not None and limit < total:
        used = _number(group / "memory.current", group / "memory/memory.usage_in_bytes") or 0
        stat = (read_text(group / "memory.stat") or read_text(group / "memory/memory.stat")).split()
        numbers = dict(zip(stat[::2], stat[1::2], strict=False))
        cached = numbers.get("total_inactive_file", numbers.get("inactive_file", "0"))
        total, free = limit, min(free, limit - used + int(cached))
    return total, free


def read_text(path: Path) -> str:
    """Returns the text of a file of the kernel; empty if it cannot be read."""
    try:
        return path.read_text()
    except OSError:
        return ""


def _number(*paths: Path) -> int | None:
    """Returns the number in the first of the files that contains one."""
    texts = (read_text(path).strip() for path in paths)
    return next((int(text) for text in texts if text.isdigit()), None)
