"""A contender's side of taking turns: do so many steps when told to, and say how long they took.

Without TensorFlow. The benchmark (`turn_taking.py`) listens at a Unix socket; a message is a line
of JSON.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import resource
import socket
import time
from pathlib import Path
from typing import Any

SOCKET_VARIABLE = "TFDIST_BENCHMARK_SOCKET"
CORES_VARIABLE = "TFDIST_BENCHMARK_CORES"  # "0,1": each worker's own, in their order


def pin_to_own_core(worker_index: int) -> None:
    """Lets this process run on its core only. Call it before threads are made."""
    cores = [int(core) for core in os.environ.get(CORES_VARIABLE, "").split(",") if core]
    if cores:
        os.sched_setaffinity(0, {cores[worker_index % len(cores)]})


def pin_to_all_cores() -> None:
    """Lets this process run on the cores of all workers. Call it before threads are made."""
    cores = {int(core) for core in os.environ.get(CORES_VARIABLE, "").split(",") if core}
    if cores:
        os.sched_setaffinity(0, cores)


class Turns:
    """The turns of this worker.

    Ask `goes_on` before each step; all workers of a contender get the same turns. Contenders are
    compared by their numbers of trainable values, where they have one.
    """

    def __init__(self, worker_index: int, num_parameters: int = 0) -> None:
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(os.environ[SOCKET_VARIABLE])
        self._lines = self._connection.makefile("r")
        self._left = 0
        self._is_in_turn = False
        self._has_ended = False
        self._bytes_at_rest: int | None = None
        self._say({"worker": worker_index, "pid": os.getpid(), "parameters": num_parameters})

    def goes_on(self) -> bool:
        """Says whether to do another step. Between turns it waits for the next one."""
        if self._has_ended:
            return False
        if self._left == 0:
            if self._is_in_turn:
                self._report()
            line = self._lines.readline()
            message = json.loads(line or '{"steps": 0}')
            self._left = message["steps"]
            self._is_in_turn = True
            self._bytes_at_rest = forget_peak() if message.get("watches_memory") else None
            self._start_s = time.perf_counter()
        if self._left == 0:  # The benchmark is over, or gone.
            self._has_ended = True
            return False
        self._left -= 1
        return True

    def _report(self) -> None:
        seconds = time.perf_counter() - self._start_s
        report = {"seconds": seconds, "peak_bytes": peak_bytes()}
        if self._bytes_at_rest is not None:
            report["step_bytes"] = memory_bytes("VmHWM") - self._bytes_at_rest
        self._say(report)

    def _say(self, message: dict[str, Any]) -> None:
        self._connection.sendall((json.dumps(message) + "\n").encode())


def peak_bytes() -> int:
    """Returns the most memory that this process has had so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def forget_peak() -> int:
    """Starts to look for the peak of a step; returns the memory in use between two steps, in bytes.

    Free memory of the C library goes back to the system first, so that a step asks for it again.
    """
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # The highest VmRSS so far: VmHWM (proc(5)).
    return memory_bytes("VmRSS")


def memory_bytes(name: str) -> int:
    """Returns a figure of /proc/self/status: "VmRSS", or "VmHWM", its highest value."""
    (kilobytes,) = re.findall(rf"^{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.M)
    return int(kilobytes) * 1024
