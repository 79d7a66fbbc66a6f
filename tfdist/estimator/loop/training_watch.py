"""TrainingWatch: names a worker that is lost during a training, and lets all leave together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import tensorflow.compat.v1 as v1

from tfdist.cluster import WorkerLostError
from tfdist.process.progress_file import in_phase
from tfdist.strategies.lost_workers import lost_workers_named
from tfdist.strategies.stop_signals import StopSignals
from tfdist.strategies.worker_strategy import WorkerStrategy


class TrainingWatch:
    """The watch over the other workers of one training.

    Its life: `naming_lost` around each collective before the training; `watched` around the
    session; inside it `start`, then `watch_session`, and `end` after the last collective.
    """

    def __init__(self, strategy: WorkerStrategy, signals: StopSignals) -> None:
        self._strategy = strategy
        self._signals = signals
        self._peers = strategy.watch_peers()
        self._is_over = False

    def naming_lost(self) -> AbstractContextManager[None]:
        """Turns TensorFlow's errors about other workers into a `WorkerLostError`."""
        return lost_workers_named(self._strategy, self._peers.membership)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watches the other workers in the `with` block, and tells them of a failure in it."""
        membership = self._peers.membership
        if membership is None:  # All replicas are in this process.
            yield
            return
        membership.calls = self._signals.calls
        membership.set_failure("")
        try:
            with self.naming_lost(), self._peers:
                yield
        except WorkerLostError:
            self._signals.leave_if_requested()  # The lost worker was asked to stop as well.
            raise
        except Exception as error:
            membership.set_failure(f"{type(error).__name__}: {error}")
            raise
        finally:
            membership.calls = None
            if self._is_over:
                with in_phase("waiting"):
                    self._peers.leave()

    def start(self) -> None:
        """Begins to watch; no session can be interrupted yet."""
        self._peers.start()

    def interrupt(self, session: v1.Session) -> None:
        """Closes this session if a worker is lost from now on."""
        self._peers.interrupt = session.close

    def end(self) -> None:
        """Ends the watch: no worker waits for another one any more."""
        self._is_over = True
        self._peers.stop()
