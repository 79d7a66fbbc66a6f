"""What a new process does before its own work: die with its parent, take its output and place."""

import ctypes
import os
import signal
import sys
from typing import NoReturn

from tfdist.testing.job import Job

_PR_SET_PDEATHSIG = 1  # from <linux/prctl.h>
# Loaded before any fork: a forked process must not wait for the loader's lock.
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent: int) -> None:
    """Has the kernel kill this process when its parent ends, however it ends.

    Args:
      parent: The parent's process id, taken before the fork: if it has ended since, this
        process ends here.
    """
    _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def take_place(job: Job) -> None:
    """Gives this process the job's input, output, environment and working folder."""
    for number, path in ((0, os.devnull), (1, job.stdout_path), (2, job.stderr_path)):
        flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_APPEND
        opened = os.open(path, flags, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    os.environ.clear()
    os.environ.update(job.environ)
    os.chdir(job.cwd)


def become_command(job: Job) -> NoReturn:
    """Replaces this process by the job's command."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, a fresh program does not
    try:
        os.execvpe(job.command[0], job.command, job.environ)
    except OSError as error:
        os.write(2, f"cannot start {job.command[0]}: {error}\n".encode())
        os._exit(127)


def python_command(module: str, *args: str, with_packages: bool = True) -> list[str]:
    """Returns the command that runs `main(*args)` of a module of ours in a new interpreter.

    The module is found where this one was found, installed or not.

    Args:
      module: The module's dotted name.
      *args: What `main` gets.
      with_packages: False leaves out the installed packages, which starts faster.
    """
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    code = (
        f"import sys; sys.path.insert(0, {root!r}); from {module} import main; main(*sys.argv[1:])"
    )
    flags = [] if with_packages else ["-S"]
    return [sys.executable, *flags, "-c", code, *args]
