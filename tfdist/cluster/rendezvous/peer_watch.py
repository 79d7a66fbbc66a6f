"""The watch over other workers during training: a worker that is lost interrupts the wait for it.

TensorFlow raises an error in a worker that waits to receive from a lost worker. It raises none in a
worker that waits until the lost one fetches a value: that wait has no end.
"""

import threading
from collections.abc import Callable, Collection
from types import TracebackType
from typing import ClassVar

from tfdist.cluster.rendezvous.membership import Loss, Membership
from tfdist.process.endings import OneLineError, end_now
from tfdist.process.exit_codes import LOST_WORKER

# The main thread often gets an error of its own at the same time, which says more.
_NEWS_DELAY_S = 1.0
# The others may get the same error as the worker whose training has failed.
_FAILURE_DELAY_S = 5.0
# The time in which a main thread that cannot be interrupted may return by itself.
_GRACE_S = 3.0
# The time in which an interrupted main thread may leave the block. It never does if closing its
# session waits for a machine that does not answer.
_LEAVING_S = 5.0


class WorkerLostError(OneLineError, RuntimeError):
    """Another worker's process ended while this one was training."""

    exit_code: ClassVar[int] = LOST_WORKER


class ProgramsDifferError(OneLineError, RuntimeError):
    """Two workers wait in different collectives: their programs do not make the same calls."""


def loss_error(loss: Loss) -> ProgramsDifferError | WorkerLostError:
    """Returns the error that ends this worker because of a loss."""
    return (ProgramsDifferError if loss.is_difference else WorkerLostError)(loss.line)


class PeerWatch:
    """Watches the other workers, from `start` to the end of the `with` block.

    When a worker is lost, the main thread's wait is interrupted, and the error that follows leaves
    the block: `loss_error`. If the wait cannot be interrupted, or the interrupt has no
    effect, the process is ended: the error's exit code, and its line on standard error.

    Args:
      membership: This worker's connections; None watches no worker.
      among: The workers to watch, by their index; None is all. The others may end at any time.
      leaving_s: The most seconds in which the main thread may leave the block; None is 5.

    Attributes:
      interrupt: Makes the main thread's wait raise; None while that is impossible.
      is_released: Whether all workers have come to their common end; see `release`.
    """

    def __init__(
        self,
        membership: Membership | None = None,
        among: Collection[int] | None = None,
        *,
        leaving_s: float | None = None,
    ) -> None:
        self.interrupt: Callable[[], None] | None = None
        self.is_released = False
        self.membership = membership
        self._among = among
        self._leaving_s = _LEAVING_S if leaving_s is None else leaving_s
        self._lost: Loss | None = None
        self._is_busy = threading.Lock()
        self._is_over = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self, interrupt: Callable[[], None] | None = None) -> None:
        """Begins to watch; workers that are lost already count as well.

        `interrupt` is called once, from another thread, when a watched worker is lost.
        """
        self.interrupt = interrupt
        if self.membership is not None:
            self.membership.add_listener(self._note)

    def stop(self) -> None:
        """Ends the watch: this worker waits for no other one, and others may end first."""
        self._is_over.set()
        if self.membership is not None:
            self.membership.remove_listener(self._note)

    def release(self) -> None:
        """Ends the watch because all workers have come to their common end."""
        self.is_released = True
        self.stop()

    def leave(self) -> None:
        """Ends the watch, and returns when all workers have done so: each may end from then on.

        A collective over all workers. Without effect if only some are watched.
        """
        self.stop()
        if self.membership is not None and self._among is None:
            self.membership.leave_together()

    def _note(self, loss: Loss) -> None:
        is_watched = self._among is None or loss.index in self._among
        if is_watched and self._is_busy.acquire(blocking=False):
            thread = threading.Thread(target=self._end, args=(loss,), daemon=True)
            thread.start()  # First: the main thread joins whatever stands in the list.
            self._threads.append(thread)

    def _end(self, loss: Loss) -> None:
        if self._is_over.wait(_FAILURE_DELAY_S if loss.is_failure else _NEWS_DELAY_S):
            return
        assert self.membership is not None
        failure = self.membership.states()[loss.index].failure if loss.is_failure else loss.line
        if not failure or failure not in loss.line:
            self._is_busy.release()  # It trains again, or has failed again since.
            return
        self._lost = loss
        if self.interrupt is None and not loss.is_difference:
            self._is_over.wait(min(_GRACE_S, self._leaving_s))
        if self.interrupt is not None:
            interrupting = threading.Thread(target=self.interrupt, daemon=True)
            interrupting.start()
            if self._is_over.wait(self._leaving_s):
                interrupting.join()
        if not self._is_over.is_set():
            error = loss_error(loss)
            end_now(f"{type(error).__name__}: {error}", error.exit_code)

    def __enter__(self) -> "PeerWatch":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Ends the watch; an error that it has caused becomes the error of the loss."""
        self.stop()
        for thread in self._threads:
            thread.join()
        if self._lost and isinstance(error, Exception):
            raise loss_error(self._lost) from error
