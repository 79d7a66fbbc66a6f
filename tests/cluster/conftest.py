"""A fixture for tests of the cluster: free ports."""

import random
import socket
from collections.abc import Callable

import pytest


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


@pytest.fixture
def free_ports() -> Callable[[int], list[int]]:
    """Chooses ports on which no process listens, below those that the kernel hands out."""

    def choose(count: int) -> list[int]:
        chosen: list[int] = []
        while len(chosen) < count:
            port = random.SystemRandom().randrange(10000, 20000)
            if port not in chosen and _is_free(port):
                chosen.append(port)
        return chosen

    return choose
