"""Fixtures for tests of the cluster: free ports, and clusters on them."""

import random
import socket
from collections.abc import Callable

import pytest

from tfdist.cluster import Cluster


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


@pytest.fixture
def local_cluster(free_ports: Callable[[int], list[int]]) -> Callable[[int], Cluster]:
    """Makes a cluster of so many workers on free ports of this machine."""

    def make(num_workers: int) -> Cluster:
        return Cluster(jobs={"worker": tuple(f"localhost:{p}" for p in free_ports(num_workers))})

    return make
