"""Waiting for a condition, never for a fixed time."""

import time
from collections.abc import Callable


def wait_until(is_so: Callable[[], bool], limit_s: float) -> bool:
    """Waits until the condition holds, and returns whether it did within the limit."""
    give_up_s = time.monotonic() + limit_s
    pause_s = 0.002
    while not is_so():
        if time.monotonic() >= give_up_s:
            return False
        time.sleep(pause_s)
        pause_s = min(0.02, pause_s * 1.5)
    return True
