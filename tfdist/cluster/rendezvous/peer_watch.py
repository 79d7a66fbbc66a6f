"""The watch over other workers during training: a worker whose process has ended is noticed.

TensorFlow raises an error in a worker that waits to receive from a lost worker. It raises none in a
worker that waits until the lost one fetches a value: that wait has no end.
"""

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import ClassVar

from tfdist.cluster.rendezvous.protocol import Member, members_of
from tfdist.cluster.rendezvous.sockets import connect
from tfdist.cluster.tasks import Cluster, Task
from tfdist.process.endings import OneLineError, end_now
from tfdist.process.exit_codes import LOST_WORKER

_PROBE_EVERY_S = 1.0
# Nothing listens there: the process has ended.
_REFUSALS_UNTIL_LOST = 2
# No answer at all: the machine or the network is down, perhaps for a moment.
_SILENCE_UNTIL_LOST_S = 20.0
# The time in which a main thread that cannot be interrupted may return by itself.
_GRACE_S = 3.0
# The time in which an interrupted main thread may leave the block. It never does if closing its
# session waits for a machine that does not answer.
_LEAVING_S = 5.0


class WorkerLostError(OneLineError, RuntimeError):
    """Another worker's process ended while this one was training."""

    exit_code: ClassVar[int] = LOST_WORKER


def peers_of(cluster: Cluster, task: Task) -> tuple[Member, ...]:
    """Returns the workers that this one watches: all but itself.

    Each worker watches all others. If each watched its neighbour only, the news would come late,
    and would name workers that ended because of the lost one.
    """
    own = cluster.worker_index(task)
    members = members_of(cluster)
    return (*members[:own], *members[own + 1 :])


class PeerWatch:
    """Watches other workers, each in its thread, from `start` to the end of the `with` block.

    When a worker is lost, its thread interrupts the main thread's wait, and the error that follows
    leaves the block as a `WorkerLostError`. If the wait cannot be interrupted, or the interrupt has
    no effect, the process is ended: exit code 200 and the same line on standard error.

    Args:
      *peers: The workers to watch.

    Attributes:
      interrupt: Makes the main thread's wait raise; None while that is impossible.
    """

    def __init__(self, *peers: Member) -> None:
        self.interrupt: Callable[[], None] | None = None
        self._peers = peers
        self._lost = ""
        self._is_first = threading.Lock()
        self._is_over = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self, interrupt: Callable[[], None] | None = None) -> None:
        """Begins to watch; the peers' servers must have been reached once before."""
        self.interrupt = interrupt
        for peer in self._peers:
            self._threads.append(threading.Thread(target=self._watch, args=(peer,), daemon=True))
            self._threads[-1].start()

    def stop(self) -> None:
        """Ends the watch: this worker waits for no other one, and others may end first."""
        self._is_over.set()

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
        if not self._is_first.acquire(blocking=False):
            return
        self._lost = f"Lost {peer} while training: {why}. See its output for the cause."
        if self.interrupt is None:
            self._is_over.wait(_GRACE_S)
        if self.interrupt is not None:
            interrupting = threading.Thread(target=self.interrupt, daemon=True)
            interrupting.start()
            if self._is_over.wait(_LEAVING_S):
                interrupting.join()
        if not self._is_over.is_set():
            end_now(f"{WorkerLostError.__name__}: {self._lost}", LOST_WORKER)

    def __enter__(self) -> "PeerWatch":
        """Returns the watch, not yet started."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Ends the watch; an error that it has caused becomes a `WorkerLostError`."""
        self._is_over.set()
        for thread in self._threads:
            thread.join()
        if self._lost and isinstance(error, Exception):
            raise WorkerLostError(self._lost) from error
