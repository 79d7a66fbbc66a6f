"""Processes of our own modules: their command lines, and their bond to a parent."""

import ctypes
import os
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1  # from <linux/prctl.h>
_PR_SET_CHILD_SUBREAPER = 36
# Loaded before any fork: a forked process must not wait for the loader's lock.
_libc = ctypes.CDLL(None, use_errno=True)


def python_command(module: str, *args: str, with_packages: bool = True) -> list[str]:
    """Returns the command that runs `main(*args)` of a module of ours in a new interpreter.

    The module is found where this one was found, installed or not.

    Args:
      module: The module's dotted name.
      *args: What `main` gets.
      with_packages: False leaves out the installed packages, which starts faster.
    """
    root = str(Path(os.path.abspath(__file__)).parents[3])
    code = (
        f"import sys; sys.path.insert(0, {root!r}); from {module} import main; main(*sys.argv[1:])"
    )
    flags = [] if with_packages else ["-S"]
    return [sys.executable, *flags, "-c", code, *args]


def die_with_parent(parent: int) -> None:
    """Has the kernel kill this process when its parent ends, however it ends.

    Args:
      parent: The parent's process id, taken before the fork: if it has ended since, this
        process ends here.
    """
    _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Makes this process the parent of descendants whose own parent ends.

    So none of them escapes whoever looks for them below this process.
    """
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
