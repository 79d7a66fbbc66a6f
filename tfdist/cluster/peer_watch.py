"""Noticing in the middle of a run that another worker's process is gone.

TensorFlow tells a worker that waits to receive from a lost one, but not a worker that waits for a
lost one to fetch what it has ready: that wait has no end.
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType

from tfdist.cluster.rendezvous_protocol import Member, members_of
from tfdist.cluster.rendezvous_sockets import connect
from tfdist.cluster.tasks import Cluster, Task

_PROBE_EVERY_S = 1.0
# Nothing listens there: the process has ended.
_REFUSALS_UNTIL_LOST = 2
# No answer at all: the machine or the network is down, perhaps for a moment.
_SILENCE_UNTIL_LOST_S = 60.0
# How long a main thread that cannot be interrupted may take to come back.
_GRACE_S = 3.0


class WorkerLostError(RuntimeError):
    """Another worker went away while this one was training."""


def next_in_ring(cluster: Cluster, task: Task) -> Member:
    """Returns the worker that this one watches; each is watched by one other.

    Whoever finds it lost ends, and is found lost in turn: so the news goes round.
    """
    members = members_of(cluster)
    return members[(cluster.worker_index(task) + 1) % len(members)]


class PeerWatch:
    """Watches another worker's server in a thread, from `start` to the end of the `with` block.

    When the worker is lost, the thread interrupts whatever this process waits for, and the error
    that follows leaves the block as a `WorkerLostError`. While there is no way to interrupt it,
    the process is ended: exit code 1 and the same line on standard error.

    Args:
      peer: The worker to watch; None watches nobody.

    Attributes:
      interrupt: Makes the main thread's wait raise; None while that is impossible.
    """

    def __init__(self, peer: Member | None) -> None:
        self.interrupt: Callable[[], None] | None = None
        self._peer = peer
        self._lost = ""
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, interrupt: Callable[[], None] | None = None) -> None:
        """Begins to watch; the peer's server must have been reached before."""
        self.interrupt = interrupt
        if self._peer is not None:
            self._thread = threading.Thread(target=self._watch, args=(self._peer,), daemon=True)
            self._thread.start()

    def _watch(self, peer: Member) -> None:
        refusals, answered_at = 0, time.monotonic()
        while not self._is_over.wait(_PROBE_EVERY_S):
            try:
                connect(peer.address).close()
            except ConnectionRefusedError:
                refusals += 1
            except OSError:
                refusals = 0
            else:
                refusals, answered_at = 0, time.monotonic()
            silent_s = time.monotonic() - answered_at
            if refusals >= _REFUSALS_UNTIL_LOST or silent_s > _SILENCE_UNTIL_LOST_S:
                self._end(peer, "its process has ended" if refusals else "it does not answer")
                return

    def _end(self, peer: Member, why: str) -> None:
        self._lost = f"Lost {peer} while training: {why}. See its output for the cause."
        if self.interrupt is None:
            self._is_over.wait(_GRACE_S)
        if self.interrupt is not None:
            self.interrupt()
        elif not self._is_over.is_set():
            print(f"{WorkerLostError.__name__}: {self._lost}", file=sys.stderr, flush=True)
            os._exit(1)

    def __enter__(self) -> "PeerWatch":
        """Returns the watch, not yet started."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Ends the watching; an error that it has caused becomes a `WorkerLostError`."""
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()
        if self._lost and isinstance(error, Exception):
            raise WorkerLostError(self._lost) from error
