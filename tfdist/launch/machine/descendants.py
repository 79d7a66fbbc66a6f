"""All processes below this one: found, signalled, ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Collection

import psutil

_POLL_S = 0.05


def descendants(
    awaited: Collection[int] = (), spared: Collection[psutil.Process] = ()
) -> list[psutil.Process]:
    """Returns the living processes below this one, and buries the dead among its children.

    Args:
      awaited: Children whose exit status somebody else takes.
      spared: Processes that are not ours, and are left out.
    """
    living = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process in spared:
                continue
            if process.status() != psutil.STATUS_ZOMBIE:
                living.append(process)
            elif process.pid not in awaited and process.ppid() == os.getpid():
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(process.pid, os.WNOHANG)
    return living


def send(number: int, processes: Collection[psutil.Process]) -> None:
    """Sends a signal to each process that still lives."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


async def end_all(
    kill_at_s: Callable[[], float],
    awaited: Collection[int] = (),
    spared: Collection[psutil.Process] = (),
) -> bool:
    """Waits until no process is left below this one; when it is time, kills them.

    Args:
      kill_at_s: When that is, on the clock of `time.monotonic`; asked again and again.
      awaited: Children whose exit status somebody else takes.
      spared: Processes that are not ours, and are left alone.

    Returns:
      Whether some had to be killed.
    """
    was_killed = False
    while living := descendants(awaited, spared):
        if time.monotonic() >= kill_at_s():
            # Each time anew: a process that forks in this moment must not escape.
            send(signal.SIGKILL, living)
            was_killed = True
        await asyncio.sleep(_POLL_S)
    return was_killed
