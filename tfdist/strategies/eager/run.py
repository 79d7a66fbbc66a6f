"""This process's part in a TensorFlow 2 run: watched from the first scope to the program's end.

An Estimator watches the other workers while it trains. In TensorFlow 2 the program decides what it
does when, so the watch begins when the workers have met, and ends with the process:

    all have met    a lost, stopped or failed worker ends the others, with exit code 200
    a normal end    waits until the others have come to theirs, since they may need this one
    another call    two workers wait in different collectives: all end, with exit code 2
    an error        ends at once, and the others name this worker and its error
"""

from __future__ import annotations

import atexit
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn

import tensorflow as tf

from tfdist.cluster import PeerWatch, WorkerLostError
from tfdist.cluster.rendezvous.collective_calls import END
from tfdist.cluster.rendezvous.membership import Membership
from tfdist.cluster.rendezvous.peer_state import CallClock
from tfdist.cluster.rendezvous.peer_watch import ProgramsDifferError
from tfdist.process.endings import ENDED_INSIDE, OneLineError, end_now, ending_error, named
from tfdist.process.progress_file import find_progress_file, in_phase, set_phase
from tfdist.strategies.lost_workers import lost_workers_named, translate
from tfdist.strategies.worker_strategy import WorkerStrategy

# The others learn in this time that programs differ, before this worker's end looks like a loss.
_NEWS_DELAY_S = 1.0


@dataclass
class _Watched:
    """The watch of this process; there is one for its life."""

    strategy: WorkerStrategy
    watch: PeerWatch
    has_failed: bool = False


_watched: _Watched | None = None
# The times of the calls of the program's own loop; None before its first step, and in a `fit`.
_loop: CallClock | None = None


def watch_until_the_end(strategy: WorkerStrategy) -> None:
    """Watches the other workers until this program ends; a second call changes nothing.

    The first call of a process is a collective over Horovod.
    """
    global _watched
    if _watched is not None:
        return
    _note_loop(is_own=True)
    watch = strategy.watch_peers()
    if watch.membership is not None:
        watch.start()
        _watched = _Watched(strategy, watch)
        atexit.register(_leave, _watched)


@contextmanager
def needs_all_workers(
    kind: str, place: Callable[[], str] | None = None, calls: CallClock | None = None
) -> Iterator[None]:
    """Marks a `with` block that ends only when all workers have come to it.

    A long wait is reported, with the workers that are late, and `--stall-timeout` limits it. An
    error about a lost worker becomes a `WorkerLostError`. If another worker waits in a block of
    another kind, all end. In a program's own loop it is part of the training, as a step is.

    Args:
      kind: What the block is part of, in words: "evaluate".
      place: Returns where in it this worker is, if there is more to say.
      calls: Keeps the times of a training's steps.
    """
    membership = membership_of_program()
    if _watched is None or membership is None or membership.collectives.kind:
        yield
        return
    with (
        lost_workers_named(_watched.strategy, membership),
        _abandoned_on_error(_watched.strategy),
        membership.collectives.running(kind, place),
    ):
        if calls is None and _loop is None:
            with in_phase("waiting"):
                yield
            return
        file = find_progress_file() if calls is None else None
        clock = calls or _loop
        assert clock is not None
        clock.begin()
        if file is not None:
            file.step_begins()
        try:
            yield
        finally:
            clock.end()
            if file is not None:
                file.write(in_step=False)


@contextmanager
def _abandoned_on_error(strategy: WorkerStrategy) -> Iterator[None]:
    try:
        yield
    except (StopIteration, tf.errors.OutOfRangeError):
        raise  # The end of a dataset: the function has sent nothing for a further step.
    except BaseException:
        strategy.abandon_step()
        raise


def membership_of_program() -> Membership | None:
    """Returns the connections to the other workers that this program watches; None without."""
    return None if _watched is None else _watched.watch.membership


def begin_loop(calls: CallClock) -> None:
    """Notes the first step of the program's own loop; `calls` keeps the times of its calls."""
    global _loop
    _loop = calls
    membership = membership_of_program()
    if membership is not None:
        membership.calls = calls
    file = find_progress_file()
    if file is not None:
        file.write(is_own_loop=True, counts_steps=True, step=0)
    set_phase("training")


def end_loop() -> None:
    """Notes that no loop of the program's own is running any more."""
    global _loop
    _loop = None


def note_progress() -> None:
    """Notes, from another thread, that the call of the loop that is running goes on."""
    if _loop is not None:
        _loop.begin()


def all_stop() -> bool:
    """Returns whether all workers call this instead of their next collective: `all_stop` there."""
    membership = membership_of_program()
    if membership is None:
        return True
    with in_phase("waiting"):
        return membership.all_stop()


@contextmanager
def training(calls: CallClock) -> Iterator[None]:
    """Marks a training in the `with` block: an error that leaves it ends all workers."""
    global _loop
    membership, loop = membership_of_program(), _loop
    if _watched is not None and membership is not None:
        _watched.has_failed = False
        membership.calls = calls
        membership.set_failure("")
    _loop = None
    _note_loop(is_own=False)
    try:
        with in_phase("training"):
            yield
    except WorkerLostError:
        raise
    except BaseException as error:
        if _watched is not None and membership is not None:
            _watched.has_failed = True
            membership.set_failure(_describe(error))
        raise
    finally:
        _loop = loop
        _note_loop(is_own=True)
        if membership is not None:
            membership.calls = loop


def _note_loop(*, is_own: bool) -> None:
    """Tells a launcher whether this is code outside of `fit`, whose steps are not known yet."""
    file = find_progress_file()
    if file is not None:
        file.write(is_own_loop=is_own, counts_steps=is_own and _loop is not None)


def _describe(error: BaseException) -> str:
    error = named(error)
    if isinstance(error, SystemExit):
        return f"{ENDED_INSIDE}, with exit code {error.code or 0}"
    return f"{type(error).__name__}: {error}".rstrip(".")


def _leave(watched: _Watched) -> None:
    error, watch = ending_error(), watched.watch
    membership = watch.membership
    assert membership is not None
    if error is None and watched.has_failed:
        watch.stop()  # It left `fit` by sys.exit: the others have lost it.
    elif error is None:
        with in_phase("waiting"), membership.collectives.running(END):
            watch.leave()
        if membership.difference:
            time.sleep(_NEWS_DELAY_S)
            _end(ProgramsDifferError(membership.difference))
    if error is None:
        return
    lost = translate(error, watched.strategy, membership)
    if lost is not None:
        _end(lost)
    membership.set_failure(_describe(error))
    watch.stop()


def _end(error: OneLineError) -> NoReturn:
    end_now(f"{type(error).__name__}: {error}", error.exit_code)
