"""Memberships inside one process, joined over real connections."""

import socket
from collections.abc import Callable, Iterator

import pytest

from tfdist.cluster.rendezvous.membership import Membership
from tfdist.cluster.rendezvous.protocol import Member


def _connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        return one, listener.accept()[0]


@pytest.fixture
def make_memberships() -> Iterator[Callable[[int], list[Membership]]]:
    """A function that returns the memberships of so many workers, in worker order."""
    made: list[Membership] = []

    def make(count: int) -> list[Membership]:
        members = [Member(name=f"worker {i}", address=f"host{i}:1") for i in range(count)]
        pairs = {i: _connected() for i in range(1, count)}
        chief = Membership(members, 0, {i: pair[0] for i, pair in pairs.items()})
        others = [Membership(members, i, {0: pair[1]}) for i, pair in pairs.items()]
        made.extend([chief, *others])
        return [chief, *others]

    yield make
    for one in made:
        one.close()
