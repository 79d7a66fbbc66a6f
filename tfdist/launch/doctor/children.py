"""Child processes that end within a limit, and of which nothing is left."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psutil

_GRACE_S = 3.0


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a child process ended.

    Attributes:
      exit_code: Minus the signal's number if one ended it; None if it was stopped at the limit.
      stdout: All that it wrote there.
      stderr: All that it wrote there.
      seconds: How long it ran.
    """

    exit_code: int | None
    stdout: str
    stderr: str
    seconds: float

    @property
    def last_line(self) -> str:
        """The last line that it wrote to standard error, else to standard output."""
        lines = (self.stderr.strip() or self.stdout).splitlines()
        # mpirun frames what it says with dashes.
        telling = [line.strip() for line in lines if line.strip(" -\t")]
        return telling[-1] if telling else "it said nothing"


async def run_child(command: Sequence[str], environ: Mapping[str, str], *, limit_s: float) -> Ended:
    """Runs a command to its end, or to the limit; whoever cancels this stops it, too.

    Raises:
      OSError: If it cannot be started.
    """
    start_s = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        *command,
        env=dict(environ),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for the doctor, which stops all.
    )
    exit_code, output = None, (b"", b"")
    try:
        output = await asyncio.wait_for(process.communicate(), limit_s)
        exit_code = process.returncode
    except asyncio.TimeoutError:  # Python 3.10's is another than the built-in one.
        pass
    finally:
        await _stop(process)
    stdout, stderr = (text.decode(errors="replace") for text in output)
    return Ended(
        exit_code=exit_code, stdout=stdout, stderr=stderr, seconds=time.monotonic() - start_s
    )


async def run_together(
    commands: Sequence[tuple[Sequence[str], Mapping[str, str]]], *, limit_s: float
) -> list[Ended | None]:
    """Runs commands side by side until all have ended, or one has failed.

    Returns:
      How each ended, in the order of the commands; None for those stopped since another failed.
    """
    tasks = [
        asyncio.ensure_future(run_child(command, environ, limit_s=limit_s))
        for command, environ in commands
    ]
    try:
        running = set(tasks)
        while running:
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            if any(task.result().exit_code != 0 for task in done):
                break
        return [task.result() if task.done() else None for task in tasks]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _stop(process: asyncio.subprocess.Process) -> None:
    """Ends a process that still runs with all that it started: TERM, then KILL."""
    if process.returncode is not None:
        return
    below: list[psutil.Process] = []
    with contextlib.suppress(psutil.NoSuchProcess):
        below = psutil.Process(process.pid).children(recursive=True)
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)  # mpirun ends its ranks by itself.
    try:
        await asyncio.wait_for(process.wait(), _GRACE_S)
    except asyncio.TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    for one in below:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
