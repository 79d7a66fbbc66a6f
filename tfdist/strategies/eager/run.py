"""This process's part in a TensorFlow 2 run: watched from the first scope to the program's end.

An Estimator watches the other workers while it trains. In TensorFlow 2 the program decides what it
does when, so the watch begins when the workers have met, and ends with the process:

    all have met    a lost, stopped or failed worker ends the others, with exit code 200
    a normal end    waits until the others have come to theirs, since they may need this one
    an error        ends at once, and the others name this worker and its error
"""

from __future__ import annotations

import atexit

from tfdist.cluster import PeerWatch, WorkerLostError
from tfdist.process.endings import end_now, ending_error
from tfdist.process.exit_codes import LOST_WORKER
from tfdist.process.progress_file import in_phase
from tfdist.strategies.lost_workers import translate
from tfdist.strategies.worker_strategy import WorkerStrategy


def watch_until_the_end(strategy: WorkerStrategy) -> None:
    """Watches the other workers until this program ends.

    The first call of a process is a collective over Horovod.
    """
    watch = strategy.watch_peers()
    if watch.membership is not None:
        watch.start()
        atexit.register(_leave, strategy, watch)


def _leave(strategy: WorkerStrategy, watch: PeerWatch) -> None:
    error = ending_error()
    membership = watch.membership
    assert membership is not None
    if error is None:
        with in_phase("waiting"):
            watch.leave()
        return
    lost = translate(error, strategy, membership)
    if lost is not None:
        end_now(f"{WorkerLostError.__name__}: {lost}", LOST_WORKER)
    membership.set_failure(f"{type(error).__name__}: {error}")
    watch.stop()
