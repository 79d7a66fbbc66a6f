"""The contact between workers, as agents and launcher see it without the program's help.

Over gRPC a worker listens on the port that it was given: tfdist's strategies and TensorFlow's own
do. Over MPI it loads Horovod. One that has loaded TensorFlow and does neither trains alone, however
many others there are, and TensorFlow says nothing about it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import psutil

from tfdist.launch.workers.worker_state import WorkerState

# Earlier, a program is not asked why it is alone: it may still prepare its data.
PATIENCE_S = 30.0
# A program that has ended earlier may have met others between two looks.
_LEAST_S = 5.0
# On a busy machine the imports alone take longer. So this part of the time must be the processor's.
_LEAST_BUSY = 0.5
# A program of Python imports TensorFlow first, which takes about so long once its library is there.
_BEFORE_LIBRARY_S, _AFTER_LIBRARY_S = 10.0, 5.0
_TENSORFLOW, _HOROVOD = "libtensorflow", "/horovod/tensorflow/mpi_lib"
# A program that trains with PyTorch may have TensorFlow for TensorBoard only.
_OTHER_FRAMEWORK = "libtorch"
_TABLES = ("/proc/self/net/tcp", "/proc/self/net/tcp6")
_LISTEN = "0A"  # TCP_LISTEN in the kernel's tables


class Contact:
    """The contact of one worker with the others, which its agent watches.

    Attributes:
      has_horovod: Whether it has loaded Horovod.
    """

    def __init__(self, environment: Mapping[str, str], *, is_rank: bool) -> None:
        self._port = None if is_rank else port_of(environment.get("TF_CONFIG", ""))
        self._is_rank = is_rank
        self._has_met = False
        self._alone_since_s: float | None = None
        self._busy_before_s = self._busy_s = 0.0
        self.has_horovod = False

    def alone_s(self, now_s: float) -> float:
        """Returns for how long the worker has had TensorFlow, and no contact with others.

        A worker that computes little has not been alone for long.
        """
        if self._alone_since_s is None:
            return 0.0
        busy_s = self._busy_s - self._busy_before_s
        return min(now_s - self._alone_since_s, max(_LEAST_S, busy_s / _LEAST_BUSY))

    def is_importing(self, started_s: float, now_s: float) -> bool:
        """Returns whether a new process of Python probably still imports TensorFlow."""
        if self._alone_since_s is None:
            return not self._has_met and now_s - started_s < _BEFORE_LIBRARY_S
        return now_s - self._alone_since_s < _AFTER_LIBRARY_S

    def look(self, pids: Collection[int], now_s: float) -> None:
        """Looks at the libraries of the worker's processes; it takes milliseconds."""
        if self._has_met:
            return
        self._busy_s = sum(_processor_time_s(pid) for pid in pids)
        libraries = "\n".join(_libraries(pid) for pid in pids)
        self.has_horovod = _HOROVOD in libraries
        if _OTHER_FRAMEWORK in libraries or (self._is_rank and self.has_horovod):
            self._has_met, self._alone_since_s = True, None
        elif self._alone_since_s is None and _TENSORFLOW in libraries:
            self._alone_since_s, self._busy_before_s = now_s, self._busy_s

    def listen(self) -> None:
        """Looks whether the worker listens on its port, once it has TensorFlow."""
        if self._alone_since_s is not None and self._port in listening_ports():
            self._has_met, self._alone_since_s = True, None


def _processor_time_s(pid: int) -> float:
    with contextlib.suppress(psutil.Error):
        return sum(psutil.Process(pid).cpu_times()[:2])  # of the program, and of the system for it
    return 0.0


def _libraries(pid: int) -> str:
    with contextlib.suppress(OSError):  # It has ended.
        return Path(f"/proc/{pid}/maps").read_text(errors="replace")
    return ""


def port_of(tf_config: str) -> int | None:
    """Returns the port of the task that TF_CONFIG describes; None if it describes none."""
    with contextlib.suppress(ValueError, LookupError, TypeError):
        described = json.loads(tf_config)
        task = described["task"]
        address = described["cluster"][task["type"]][task["index"]]
        return int(address.rpartition(":")[2])
    return None


def listening_ports() -> set[int]:
    """Returns the TCP ports on which processes of this machine listen."""
    ports = set()
    for table in _TABLES:
        with contextlib.suppress(OSError):  # a machine without IPv6
            for line in Path(table).read_text().splitlines()[1:]:
                _, address, _, state, *_ = line.split()
                if state == _LISTEN:
                    ports.add(int(address.rpartition(":")[2], 16))
    return ports


def strangers_text(workers: Sequence[WorkerState], engine: str, *, has_ended: bool) -> str:
    """Returns that no worker has met another one, and what to write; "" if that is not known."""
    training = [worker for worker in workers if worker.plan.replicas]
    least_s = _LEAST_S if has_ended else PATIENCE_S
    if len(training) < 2 or any(worker.progress is not None for worker in training):
        return ""
    if any(worker.alone_s < least_s for worker in training):
        return ""
    state = "have not met: each trained" if has_ended else "have not met yet: each trains"
    if engine == "grpc" and all(worker.has_horovod for worker in training):
        fix = "The program uses Horovod, so start it with --engine horovod."
    else:
        fix = (
            "Write strategy = tfdist.strategies.strategy_for_run(), and make and compile the model "
            "in `with strategy.scope():`."
        )
    return f"the {len(training)} workers {state} alone. {fix}"
