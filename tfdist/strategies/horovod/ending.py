"""The end of a rank that mpirun started, with a limited wait for the other ranks.

Horovod's own ending waits until every rank has ended Horovod. A rank that is stopped or hangs never
does, and then the reason why the first rank ended stays unknown: mpirun sees a failure only when
the process has ended.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import sys
import threading
import time
from collections.abc import Callable
from types import ModuleType

from tfdist.cluster import WorkerLostError
from tfdist.process import endings

# The other ranks learn of the end within milliseconds, whatever their Python code is doing. A rank
# that fails waits less, so that mpirun learns of the failure soon.
_LIMIT_S = 10.0
_LIMIT_OF_A_FAILURE_S = 2.0
_REPORT_EVERY_S = 5.0
# mpirun takes its exit code from the rank that ends first. This should be the rank that failed, so
# a rank that lost it waits.
_SURVIVOR_WAITS_S = 1.0


def end_in_time(hvd: ModuleType) -> None:
    """Replaces Horovod's own ending at the exit of this process; a second call changes nothing."""
    global _ending
    atexit.unregister(hvd.shutdown)
    if _ending is None:
        _ending = _Ending(hvd.shutdown)
        atexit.register(_ending.run)


class _Ending:
    """Ends Horovod on this rank, and makes it end on the others, in a separate thread.

    It is started in advance: from Python 3.12 on, a process that is ending cannot start one.
    """

    def __init__(self, shutdown: Callable[[], None]) -> None:
        self._shutdown = shutdown
        self._begins, self._is_done = threading.Event(), threading.Event()
        threading.Thread(target=self._wait_and_end, daemon=True).start()

    def run(self) -> None:
        self._begins.set()
        error = endings.ending_error()
        if not self._wait(_LIMIT_OF_A_FAILURE_S if error is not None else _LIMIT_S):
            print("The other ranks have not ended: this one leaves.", file=sys.stderr, flush=True)
        elif isinstance(error, WorkerLostError):
            time.sleep(_SURVIVOR_WAITS_S)
        if error is not None:
            # Python ends with a search for garbage, which takes more than a second where TensorFlow
            # has built graphs. mpirun learns of the failure, and ends the others, after it.
            gc.freeze()
        _skip_destructors()

    def _wait_and_end(self) -> None:
        self._begins.wait()
        self._shutdown()
        self._is_done.set()

    def _wait(self, limit_s: float) -> bool:
        """Waits for the end of Horovod, and reports the wait; returns whether the end came."""
        waited_s = 0.0
        while not self._is_done.wait(min(_REPORT_EVERY_S, limit_s - waited_s)):
            waited_s += _REPORT_EVERY_S
            if waited_s >= limit_s:
                return False
            print(
                f"Waiting for the other ranks to end, {waited_s:.0f} s of {limit_s:.0f} s ...",
                file=sys.stderr,
                flush=True,
            )
        return True


_ending: _Ending | None = None  # A process ends once.


def _skip_destructors() -> None:
    """Exits with the process's exit code after Python has finalized, without C++ destructors.

    The destructors of Horovod's and MPI's C++ objects would wait for the other ranks again. The
    function that is registered last with the C library runs first, and gets the exit code.
    """
    libc = ctypes.CDLL(None)
    libc.fflush(None)
    libc.on_exit(libc._exit, None)  # noqa: SLF001, a name of the C library
