"""Ctrl-C ends a worker at every moment, also while TensorFlow waits for another worker."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_GRACE_S = 2.0
_EXIT_CODE = 128 + signal.SIGINT


@contextmanager
def prompt_interrupts() -> Iterator[None]:
    """Makes Ctrl-C work while the main thread is inside TensorFlow's C++ code.

    Python runs its handler only when the main thread is back in Python; a collective that waits
    for a lost worker never comes back. A second thread is told by the operating system at once,
    gives the main thread two seconds to raise KeyboardInterrupt, and else ends the process with
    exit code 130. Does nothing outside the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    seen = threading.Event()
    previous = signal.getsignal(signal.SIGINT)

    def handle(number: int, frame: FrameType | None) -> None:
        seen.set()
        if callable(previous):
            previous(number, frame)

    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    watcher = threading.Thread(target=_watch, args=(read_end, seen), daemon=True)
    signal.signal(signal.SIGINT, handle)
    old_fd = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    watcher.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(old_fd)
        if previous is not None:
            signal.signal(signal.SIGINT, previous)
        os.close(write_end)  # Ends the watcher.
        watcher.join()
        os.close(read_end)


def _watch(read_end: int, seen: threading.Event) -> None:
    while True:
        select.select([read_end], [], [])
        numbers = os.read(read_end, 64)
        if not numbers:
            return
        if signal.SIGINT in numbers and not seen.wait(_GRACE_S):
            print(
                "Interrupted while waiting for another worker: this worker ends now.",
                file=sys.stderr,
                flush=True,
            )
            os._exit(_EXIT_CODE)
        seen.clear()
