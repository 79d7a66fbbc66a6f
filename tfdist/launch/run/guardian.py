"""The guardian of an agent: a small process that cleans up if the agent is killed.

    agent ───pipe───> guardian
      │
    worker ── its children, and theirs

The kernel closes the pipe when the agent ends, in whatever way. An agent that was not killed has
ended all processes of its worker by then and has removed its folder, so nothing is left to do.
After a `kill -9` the kernel kills the worker (`die_with_parent`), but not its children, which may
have left its process group and session. They are found by the variable in their environment that
names the agent's folder, as Jenkins' ProcessTreeKiller finds those of a build.

Only a guardian that is killed in the same instant as its agent cannot do its work. So that a search
for the launcher's name does not find it, it reads this file as its standard input, and has another
name in the list of processes. It needs nothing but Python's standard library.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

_NAME = "run-guardian"  # in the list of processes: `descendants.GUARDIAN`
_VARIABLE = "TFDIST_PROGRESS_FILE"  # begins with the folder
_NOT_INHERITED = (_VARIABLE, "TFDIST_AGENT_")
_POLL_S = 0.05
_LIMIT_S = 30.0  # A process that waits for a broken disk cannot be killed.


@contextlib.contextmanager
def guarded(folder: Path) -> Iterator[None]:
    """Starts a guardian for this process, an agent, and ends it after the `with` block.

    The agent removes the folder at the end of the block.
    """
    reader, writer = os.pipe()
    with open(__file__, "rb") as code:
        guardian = subprocess.Popen(
            [sys.executable, "-I", "-S", "-", str(reader)],  # isolated, so that it starts fast
            stdin=code,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={k: v for k, v in os.environ.items() if not k.startswith(_NOT_INHERITED)},
            pass_fds=[reader],
            start_new_session=True,
        )
    os.close(reader)
    with os.fdopen(writer, "wb", buffering=0) as pipe:
        pipe.write(os.fsencode(folder) + b"\n")
        try:
            yield
        finally:
            guardian.kill()  # It may be stopped, and has nothing to do any more.
            guardian.wait()


def main(reader: int) -> None:
    """Waits for the agent's end, then removes what is left of its worker, and its folder."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    Path("/proc/self/comm").write_text(_NAME)
    with os.fdopen(reader, "rb") as pipe:
        folder = pipe.readline().rstrip(b"\n")
        pipe.read()
    if not folder or not os.path.isdir(folder):
        return
    give_up_s = time.monotonic() + _LIMIT_S
    while (left := processes_of(folder)) and time.monotonic() < give_up_s:
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL_S)
    shutil.rmtree(folder, ignore_errors=True)


def processes_of(folder: bytes) -> list[int]:
    """Returns the processes with a file of this folder in their environment."""
    beginning = b"\0" + _VARIABLE.encode() + b"=" + folder + b"/"
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):  # another user's, or it has ended
                environment = Path("/proc", name, "environ").read_bytes()
                if beginning in b"\0" + environment:
                    found.append(int(name))
    return found


if __name__ == "__main__":
    main(int(sys.argv[1]))
