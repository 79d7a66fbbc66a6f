"""Limits of this machine that a run must keep, checked before anything is started.

Each check raises a UsageError.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import psutil

from tfdist.launch.errors import UsageError
from tfdist.process.text import shown

LONGEST_WORD = 131_071  # bytes of a word or a variable: MAX_ARG_STRLEN in <linux/binfmts.h>
# Of the launcher: a connection, a log, a lock of a port, and a process that is awaited.
_FILES_EACH = 4
_OTHER_FILES = 32  # with connections of other programs, see `run/listener.py`
_PROCESSES_EACH = 2  # the agent and its worker
_LEAST_MEMORY_EACH = 20 << 20  # bytes of both, before the worker has imported anything
_GB = 10**9
_MOST_FOR_EACH_CORE = 8  # Workers. With more they only wait for each other.


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of this process and this machine."""

    open_files: int
    processes: int
    memory_bytes: int


def find_limits() -> Limits:
    """Returns the limits that hold here."""
    processes, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    is_limited = os.geteuid() != 0 and processes != resource.RLIM_INFINITY
    return Limits(
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        processes=processes if is_limited else 1 << 22,  # Linux has no higher process IDs
        memory_bytes=psutil.virtual_memory().total,
    )


def check_cores(num_here: int, num_cores: int) -> None:
    """Checks that workers on this machine would make progress."""
    if num_here > _MOST_FOR_EACH_CORE * num_cores:
        raise UsageError(
            f"--num-instances asks for {num_here} workers on this machine, which has {num_cores} "
            f"core(s): more than {_MOST_FOR_EACH_CORE} for each. Use at most "
            f"{_MOST_FOR_EACH_CORE * num_cores}, other machines with --host, or --oversubscribe."
        )


def check_size(num_here: int, num_elsewhere: int, limits: Limits) -> None:
    """Checks that this machine can hold so many workers, and the launcher of all workers.

    `num_here` counts the evaluator.
    """
    memory = num_here * _LEAST_MEMORY_EACH
    if memory > limits.memory_bytes:
        raise UsageError(
            f"--num-instances asks for {num_here} workers on this machine, which need more than "
            f"{memory / _GB:.0f} GB of memory, and it has {limits.memory_bytes / _GB:.0f} GB. "
            "Use fewer, or other machines with --host."
        )
    processes = num_here * _PROCESSES_EACH
    if processes > limits.processes:
        raise UsageError(
            f"{num_here} workers here are {processes} processes with their agents, and this user "
            f"may have {limits.processes}. Use fewer workers, or raise the limit (ulimit -u)."
        )
    files = (num_here + num_elsewhere) * _FILES_EACH + _OTHER_FILES
    if files > limits.open_files:
        raise UsageError(
            f"for {num_here + num_elsewhere} workers the launcher opens up to {files} files, and "
            f"the limit here is {limits.open_files}. Raise it with: ulimit -n {files}, or use "
            "fewer workers."
        )


def check_words(words: Iterable[str], environment: Mapping[str, str]) -> None:
    """Checks that no word of a command and no variable is too long to start a program with."""
    for word in (*words, *(f"{name}={value}" for name, value in environment.items())):
        if (size := len(os.fsencode(word))) > LONGEST_WORD:
            raise UsageError(
                f"a word of the command, or a variable, has {size} bytes, and at most "
                f"{LONGEST_WORD} are possible: {shown(word)}.\nPut it into a file that the "
                "program reads."
            )


def check_command(name: str, words: Sequence[str], environment: Mapping[str, str]) -> None:
    """Checks that a command and its environment are not too long for the system."""
    texts = (*words, *(f"{name}={value}" for name, value in environment.items()))
    # Each text has a zero byte at its end and a pointer to it.
    size, most = sum(len(os.fsencode(text)) + 9 for text in texts), os.sysconf("SC_ARG_MAX")
    if size > most:
        raise UsageError(
            f"the command of {name} and its environment have {size} bytes, and this system allows "
            f"{most}. Use fewer workers, or raise the limit (ulimit -s)."
        )
