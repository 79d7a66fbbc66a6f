"""The descendants of this process: functions to find, signal and end them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Collection

import psutil

# The guardian of an agent in the list of processes; at most 15 characters.
GUARDIAN = "run-guardian"
_POLL_S = 0.05


def descendants(
    awaited: Collection[int] = (), spared: Collection[psutil.Process] = ()
) -> list[psutil.Process]:
    """Returns the living descendants of this process, and reaps its zombie children.

    Guardians, each of which ends by itself after its agent, and `spared` processes are left out.
    Other code waits for the `awaited` children, which are not reaped.
    """
    living = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process in spared:
                continue
            if process.status() != psutil.STATUS_ZOMBIE:
                if process.name() != GUARDIAN:
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
    is_kill_time: Callable[[], bool],
    awaited: Collection[int] = (),
    spared: Collection[psutil.Process] = (),
) -> bool:
    """Waits until no `descendants` are left; returns whether some had to be killed.

    They are killed once `is_kill_time`, which is called at each check, returns True.
    """
    was_killed = False
    while living := descendants(awaited, spared):
        if is_kill_time():
            # Repeated at each check, so that the child of a process that was just forking is killed
            # as well.
            send(signal.SIGKILL, living)
            was_killed = True
        await asyncio.sleep(_POLL_S)
    return was_killed


async def wait_for_guardians(limit_s: float) -> None:
    """Waits until no guardian is below this process, for at most `limit_s` seconds.

    An agent waits for its own guardian, so that only those of killed agents are left.
    """
    give_up_s = time.monotonic() + limit_s
    while time.monotonic() < give_up_s:
        descendants()
        names = [_name(process) for process in psutil.Process().children(recursive=True)]
        if GUARDIAN not in names:
            return
        await asyncio.sleep(_POLL_S)


def _name(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.NoSuchProcess):
        return str(process.name())
    return ""
