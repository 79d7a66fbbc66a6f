"""Processes that run a module of this package: their command, ties to a parent, and signals."""

import ctypes
import os
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1  # from <linux/prctl.h>
_PR_SET_CHILD_SUBREAPER = 36
# Loaded before any fork, because a forked process must not wait for the loader's lock.
_libc = ctypes.CDLL(None, use_errno=True)


def python_command(module: str, *args: str, with_packages: bool = True) -> list[str]:
    """Returns the command that runs `main(*args)` of a tfdist module in a new interpreter.

    The module is loaded from the same place as this one, whether tfdist is installed or not.
    Without packages, only the standard library is on the path, which starts faster.
    """
    root = str(Path(os.path.abspath(__file__)).parents[3])
    code = (
        f"import sys; sys.path.insert(0, {root!r}); from {module} import main; main(*sys.argv[1:])"
    )
    flags = [] if with_packages else ["-S"]
    return [sys.executable, *flags, "-c", code, *args]


def die_with_parent(parent: int) -> None:
    """Makes the kernel kill this process (SIGKILL) when its parent ends for any reason.

    The parent's process ID is read before the fork. If it has ended since, this process exits at
    once with code 1.
    """
    _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Makes this process the new parent of each descendant that loses its parent.

    A search through the descendants of this process therefore finds all of them.
    """
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def stop_signals() -> list[signal.Signals]:
    """Returns the signals that ask this process to stop.

    SIGHUP is not one of them where it was ignored at the start, as `nohup` does: it stays ignored
    then, also in the processes that this one starts.
    """
    is_ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, *([] if is_ignored else [signal.SIGHUP])]
