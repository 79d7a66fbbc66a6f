"""Signals reach a worker at every moment, also while TensorFlow waits for another worker."""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

_LOOK_EVERY_S = 0.1

Handler = Callable[[int, FrameType | None], None]


@contextmanager
def watched_signals(
    numbers: Sequence[int], handle: Handler, watch: Callable[[int, float], bool]
) -> Iterator[None]:
    """Handles signals, and watches over those that the main thread cannot handle.

    Python runs a handler only when the main thread is back in Python; a collective that waits for
    a lost worker never comes back. A second thread is told by the operating system at once.

    Args:
      numbers: The signals. Outside the main thread nothing is done.
      handle: Python's handler for all of them.
      watch: Called in the second thread several times a second after a signal, with its number
        and the time of its arrival (`time.monotonic()`), until it returns False: there is nothing
        to watch any more. It may end the process.
    """
    if threading.current_thread() is not threading.main_thread() or not numbers:
        yield
        return
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    watcher = threading.Thread(
        target=_watch, args=(read_end, frozenset(numbers), watch), daemon=True
    )
    previous = {number: signal.signal(number, handle) for number in numbers}
    old_fd = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    watcher.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(old_fd)
        for number, handler in previous.items():
            signal.signal(number, handler)
        os.close(write_end)  # Ends the watcher.
        watcher.join()
        os.close(read_end)


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
