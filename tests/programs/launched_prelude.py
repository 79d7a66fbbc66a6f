"""The beginning of each program that the tests of the launcher start: its imports and functions."""

import os
import signal
import subprocess  # noqa: F401
import sys  # noqa: F401
import time
from collections.abc import Callable
from pathlib import Path

here = Path(__file__).parent
index = int(os.environ.get("TFDIST_INSTANCE_INDEX", "-1"))


def ready() -> None:
    """Reports to the test that this worker has started."""
    (here / f"ready-{index}").touch()


def wait_for(name: str) -> None:
    """Waits until the folder has a file of this name."""
    while not (here / name).exists():
        time.sleep(0.01)


def on(number: int, action: Callable[[], object]) -> None:
    """Calls `action` at each signal of this number."""
    signal.signal(number, lambda *_: action())


# The code of the test's program follows.
