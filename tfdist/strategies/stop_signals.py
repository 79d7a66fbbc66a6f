"""Stop signals in a training: on SIGTERM or SIGUSR1 all workers finish the step, save and leave."""

from __future__ import annotations

import atexit
import fcntl
import functools
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, NoReturn

import tensorflow.compat.v1 as v1

from tfdist.cluster.rendezvous.peer_state import CallClock
from tfdist.process.endings import end_now
from tfdist.process.exit_codes import SAVED_AND_STOPPED

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)

# The time limit for the main thread to return to Python if it has nothing to finish.
_GRACE_S = 2.0
# After SIGTERM, the time by which a session call may exceed the longest one before it. Less than
# the 30 s that Kubernetes and `tfdist run` wait until SIGKILL.
_STEP_GRACE_S = 10.0

_LOOK_EVERY_S = 0.1

Handler = Callable[[int, FrameType | None], None]


@dataclass(frozen=True, kw_only=True)
class StopOrder:
    """A signal that all workers follow.

    Attributes:
      number: The signal; SIGTERM if some workers got SIGTERM and others SIGUSR1.
      receivers: The number of workers that got a signal.
      receiver: The index of the worker that got it, if it was only one.
    """

    number: int
    receivers: int = 1
    receiver: int = 0


NUM_REQUESTS = 3


def requests_of(number: int | None, worker_index: int) -> list[float]:
    """Returns a worker's part in the sums of a step: [SIGTERM, SIGUSR1, index of the receiver]."""
    if number is None:
        return [0.0] * NUM_REQUESTS
    return [float(number == one) for one in STOP_SIGNALS] + [float(worker_index)]


def order_in(sums: Sequence[float]) -> StopOrder | None:
    """Returns the order that all workers' summed parts contain; None without a signal."""
    terms, usrs, indices = (round(float(x)) for x in sums)
    if not terms + usrs:
        return None
    number = signal.SIGTERM if terms else signal.SIGUSR1
    return StopOrder(number=number, receivers=terms + usrs, receiver=indices)


def describe(
    order: StopOrder, *, step: int, num_workers: int, saves: bool, what: str = "checkpoint"
) -> str:
    """Returns one line with the signal, the workers that got it, the last step and the saving.

    What is saved is an Estimator's "checkpoint", or the "backup" of Keras' BackupAndRestore.
    """
    who = ""
    if num_workers > 1 and order.receivers == 1:
        who = f" to worker {order.receiver}"
    elif num_workers > 1:
        who = f" to {order.receivers} of {num_workers} workers"
    asks = "the RunConfig asks for none" if what == "checkpoint" else "fit has no BackupAndRestore"
    saved = f"its {what} is saved" if saves else f"no {what} is saved, as {asks}"
    return f"Stopped by {signal.Signals(order.number).name}{who} after step {step}; {saved}."


def describe_exit(order: StopOrder, step: int, num_workers: int) -> str:
    """Returns the same line for a program's own loop, which saves as it likes."""
    line = describe(order, step=step, num_workers=num_workers, saves=True)
    code = _exit_code(order.number)
    return f"{line.partition(';')[0]} of its loop: SystemExit({code}) is raised there."


class StopSignals:
    """The stop signals of this process, and their present effect.

    At first they end the process at once. During training they are noted, and the training loop
    follows them. Ctrl-C raises KeyboardInterrupt as usual, also while TensorFlow waits.

    Attributes:
      own: The stop signal that this process got; None without one.
      order: The stop signal that all workers follow; None without one.
      calls: The training's session calls.
      is_saving: Whether a checkpoint is being written. Writing it is finished first.
      is_in_own_code: Returns whether a program's own loop is running, which may have ended without
        a word: a signal that comes then is noted for a limited time.
    """

    def __init__(self) -> None:
        self.own: int | None = None
        self.order: StopOrder | None = None
        self.calls = CallClock()
        self.is_saving = False
        self.is_in_own_code: Callable[[], bool] = lambda: False
        self._notes_only = False
        self._handled: set[int] = set()
        self._interrupt: Any = signal.getsignal(signal.SIGINT)

    @property
    def is_stopping(self) -> bool:
        return self.own is not None or self.order is not None

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Notes stop signals in the `with` block; an earlier signal ends the process."""
        with self._noting(True):
            self.leave_if_requested()
            yield

    def at_once(self) -> AbstractContextManager[None]:
        """Ends the process at once on a signal in the `with` block, also inside of `noted`."""
        return self._noting(False)

    def leave_if_requested(self) -> None:
        """Ends the process if it has a stop signal to follow: one it got, or the agreed one."""
        if self.is_stopping:
            v1.logging.info(f"Stopped by {signal.Signals(self._number()).name}.")
            self.leave()

    def leave_unless_noted(self) -> None:
        """Ends the process if it has a signal to follow, unless it has a training to finish."""
        if not self._notes_only:
            self.leave_if_requested()

    def leave_after_training(
        self, *, step: int, num_workers: int, worker_index: int, saves: bool
    ) -> None:
        """Ends the process if it has a signal to follow; called after the end of a training."""
        order = self.order
        if order is None and self.own is not None:  # It came after the last agreement.
            order = StopOrder(number=self.own, receiver=worker_index)
        if order is not None:
            self.order = order
            v1.logging.info(describe(order, step=step, num_workers=num_workers, saves=saves))
            self.leave()

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Handles a signal; Python calls it in the main thread."""
        self._handled.add(number)
        if number == signal.SIGINT:
            self._interrupt(number, frame)
            return
        self.own = self.own or number
        if not self.is_saving:
            self.leave_unless_noted()

    def watch(self, number: int, since_s: float) -> bool:
        """Ends the process, from another thread, if the main thread takes too long.

        Returns:
          Whether to call this again.
        """
        is_handled = number in self._handled
        if is_handled and (number == signal.SIGINT or not self._notes_only):
            self._handled.discard(number)
            return False
        line = overdue(
            number,
            waited_s=time.monotonic() - since_s,
            has_to_finish=number != signal.SIGINT and (self._notes_only or self.is_saving),
            in_call_s=self.calls.lasting_s(since_s),
            longest_call_s=self.calls.longest_s,
            idle_s=self._idle_s(since_s),
        )
        if line is not None:
            end_now(line, _exit_code(number))
        return True

    def _idle_s(self, since_s: float) -> float | None:
        """Returns the seconds since a time without a step of the program's own loop."""
        if self.order is not None or self.is_saving or not self.is_in_own_code():
            return None
        return time.monotonic() - max(since_s, self.calls.ended_s)

    @contextmanager
    def _noting(self, notes_only: bool) -> Iterator[None]:
        before = self._notes_only
        self._notes_only = notes_only
        try:
            yield
        finally:
            self._notes_only = before

    def leave(self) -> NoReturn:
        """Ends the process with the exit code of the stop signal that it follows.

        A signal that is repeated while the interpreter ends does not change the exit code.
        """
        atexit.unregister(ignore_repeated)
        atexit.register(ignore_repeated)
        raise SystemExit(_exit_code(self._number()))

    def _number(self) -> int:
        number = self.order.number if self.order is not None else self.own
        assert number is not None
        return number


def overdue(
    number: int,
    *,
    waited_s: float,
    has_to_finish: bool,
    in_call_s: float | None,
    longest_call_s: float,
    idle_s: float | None = None,
) -> str | None:
    """Returns the line to end a process with that does not react to a signal; None if it may go on.

    Args:
      number: The signal.
      waited_s: Seconds since the signal came.
      has_to_finish: Whether the process lets the training finish its step and save.
      in_call_s: Seconds of waiting inside the present session call; None outside of one.
      longest_call_s: The longest session call so far.
      idle_s: Seconds without a step of a program's own loop; None outside of one.
    """
    name = signal.Signals(number).name
    if not has_to_finish:
        if waited_s <= _GRACE_S:
            return None
        what = "Interrupted" if number == signal.SIGINT else name
        return f"{what} while waiting for another worker: this worker ends now."
    # SIGUSR1 comes long before the end, and a call may wait for a worker that evaluates.
    if number == signal.SIGTERM and in_call_s is None and idle_s is not None:
        if idle_s <= _STEP_GRACE_S:
            return None
        return f"SIGTERM: no step of a loop has begun for {idle_s:.0f} s. This worker ends now."
    if number != signal.SIGTERM or in_call_s is None or in_call_s <= longest_call_s + _STEP_GRACE_S:
        return None
    return (
        f"SIGTERM: a session call does not end (after {in_call_s:.0f} s; does another "
        "worker hang?). This worker ends now; steps since the last checkpoint are lost."
    )


def ignore_repeated() -> None:
    """Makes a signal that is repeated while the interpreter ends change nothing."""
    for number in STOP_SIGNALS:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, signal.SIG_IGN)


def _exit_code(number: int) -> int:
    return SAVED_AND_STOPPED.get(signal.Signals(number).name, 128 + number)


_current: StopSignals | None = None  # Signals belong to the process.


@contextmanager
def listening() -> Iterator[StopSignals]:
    """Handles stop signals while the `with` block runs, unless the program handles them itself.

    It has an effect only in the main thread, and only on signals that would kill the process.
    Inside another such block it yields that block's object.
    """
    global _current
    if threading.current_thread() is not threading.main_thread():
        yield StopSignals()
        return
    if _current is not None:
        yield _current
        return
    signals = StopSignals()
    numbers = [n for n in STOP_SIGNALS if signal.getsignal(n) is signal.SIG_DFL]
    if callable(signal.getsignal(signal.SIGINT)):
        numbers.append(signal.SIGINT)
    _current = signals
    try:
        with watched_signals(numbers, signals.handle, signals.watch):
            yield signals
    finally:
        _current = None


def current() -> StopSignals | None:
    """Returns the object of the main thread's `listening` block; None outside of one."""
    return _current


@contextmanager
def watched_signals(
    numbers: Sequence[int], handle: Handler, watch: Callable[[int, float], bool]
) -> Iterator[None]:
    """Handles signals in the `with` block, also while the main thread cannot.

    Python runs a handler only when the main thread is back in Python; a collective that waits for
    a lost worker never returns. A second thread learns of a signal at once, through a pipe.

    Args:
      numbers: The signals. Outside the main thread there is no effect.
      handle: Python's handler for all of them.
      watch: Called in the second thread several times a second after a signal, with its number
        and the time of its arrival (`time.monotonic()`), until it returns False. It may end the
        process.
    """
    if threading.current_thread() is not threading.main_thread() or not numbers:
        yield
        return
    read_end, write_end = _pipe()
    os.set_blocking(write_end, False)
    watcher = threading.Thread(
        target=_watch, args=(read_end, frozenset(numbers), watch), daemon=True
    )
    previous = {number: signal.signal(number, handle) for number in numbers}
    old_fd = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)

    def leave() -> None:
        signal.set_wakeup_fd(old_fd)
        for number, handler in previous.items():
            signal.signal(number, handler)
        os.close(write_end)  # Ends the watcher.

    watcher.start()
    _register_at_fork()
    _leave_blocks.append(leave)
    try:
        yield
    finally:
        if leave in _leave_blocks:  # Not in a process that was forked in the block.
            _leave_blocks.remove(leave)
            leave()
            watcher.join()
            os.close(read_end)


def _pipe() -> list[int]:
    """Returns the ends of a pipe, none with the number of a standard stream that is closed.

    What is printed into such a stream would be read as signals.
    """
    ends = os.pipe()
    above = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 3) for end in ends]
    for end in ends:
        os.close(end)
    return above


# What leaves each `watched_signals` block around the running code, the innermost one last.
_leave_blocks: list[Callable[[], None]] = []


@functools.cache
def _register_at_fork() -> None:
    """Makes each process that the program forks leave the blocks around it.

    Otherwise it would ignore SIGTERM, hand its signals to this process through the pipe, and keep
    the watcher from its end, since the pipe is open as long as anyone has it.
    """

    def leave_all() -> None:
        while _leave_blocks:
            _leave_blocks.pop()()

    os.register_at_fork(after_in_child=leave_all)


def _watch(read_end: int, numbers: frozenset[int], watch: Callable[[int, float], bool]) -> None:
    arrived_s: dict[int, float] = {}
    while True:
        ready, _, _ = select.select([read_end], [], [], _LOOK_EVERY_S if arrived_s else None)
        if ready:
            received = os.read(read_end, 64)
            if not received:
                return
            for number in numbers.intersection(received):
                arrived_s.setdefault(number, time.monotonic())
        arrived_s = {n: since_s for n, since_s in arrived_s.items() if watch(n, since_s)}
