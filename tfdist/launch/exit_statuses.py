"""What an exit code or a signal says about the end of a process."""

from __future__ import annotations

import signal

from tfdist.cluster.exit_codes import (
    BAD_CONFIGURATION,
    LOST_WORKER,
    PORT_TAKEN,
    SAVED_AND_STOPPED,
)

_SIGNAL_MEANINGS = {
    "SIGKILL": "killed, often: out of memory; see dmesg",
    "SIGSEGV": "a forbidden memory access, in native code",
    "SIGABRT": "aborted by native code, which usually prints why",
    "SIGBUS": "a broken memory access, often: /dev/shm or a disk is full",
    "SIGILL": "an instruction that this processor does not have",
    "SIGFPE": "a forbidden calculation in native code, like a division by zero",
    "SIGTERM": "somebody asked it to stop",
    "SIGINT": "Ctrl-C",
    "SIGHUP": "its terminal was closed",
    "SIGQUIT": "Ctrl-\\",
    "SIGXCPU": "the limit of processor time was reached: ulimit -t",
    "SIGXFSZ": "the limit of the size of a file was reached: ulimit -f",
}
_CODE_MEANINGS = {
    0: "as if all were well",
    BAD_CONFIGURATION: "bad configuration",
    126: "the command was found, but cannot be run",
    127: "the command was not found",
    LOST_WORKER: "it lost another worker",
    PORT_TAKEN: "somebody else had taken its port",
    **{code: f"it saved and stopped on {name}" for name, code in SAVED_AND_STOPPED.items()},
}
_SHELL_SIGNAL_OFFSET = 128  # a shell, or mpirun, reports a signal so


def signal_name(number: int) -> str:
    """Returns a signal's name, like "SIGKILL"; "signal 35" if it has none."""
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have no name
        return f"signal {number}"


def signal_text(number: int) -> str:
    """Returns a signal's name, its number and what it says: "signal SIGKILL (9): killed, …"."""
    name = signal_name(number)
    shown = name if name.startswith("signal ") else f"signal {name} ({number})"
    meaning = _SIGNAL_MEANINGS.get(name)
    return f"{shown}: {meaning}" if meaning else shown


def exit_code_text(code: int) -> str:
    """Returns an exit code and what it says: "127: the command was not found"."""
    meaning = _CODE_MEANINGS.get(code)
    if meaning is not None:
        return f"{code}: {meaning}"
    number = signal_of_code(code)
    return str(code) if number is None else f"{code} = 128 + {number}, {signal_text(number)}"


def signal_of_code(code: int) -> int | None:
    """Returns the signal that a shell reports by this exit code, or None if it is none."""
    number = code - _SHELL_SIGNAL_OFFSET
    return number if number in signal.valid_signals() and code not in _CODE_MEANINGS else None
