"""The descendants of this process: functions to find, signal and end them."""

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
    """Returns the living descendants of this process, and reaps its zombie children.

    Args:
      awaited: The process IDs of children that other code waits for; they are not reaped.
      spared: Unrelated processes, which are left out.
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
    """Sends a signal to each process that is still alive."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


async def end_all(
    kill_at_s: Callable[[], float],
    awaited: Collection[int] = (),
    spared: Collection[psutil.Process] = (),
) -> bool:
    """Waits until this process has no descendants; from the kill time on, kills them.

    Args:
      kill_at_s: Returns the kill time on the clock of `time.monotonic`. Called at each check.
      awaited: The process IDs of children that other code waits for.
      spared: Unrelated processes, which are left alone.

    Returns:
      True if a process had to be killed.
    """
    was_killed = False
    while living := descendants(awaited, spared):
        if time.monotonic() >= kill_at_s():
            # Repeated at each check, so that the child of a process that was just forking is killed
            # as well.
            send(signal.SIGKILL, living)
            was_killed = True
        await asyncio.sleep(_POLL_S)
    return was_killed
