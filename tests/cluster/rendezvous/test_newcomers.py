"""Connections are read side by side, and one that says nothing costs the others nothing."""

import contextlib
import errno
import socket
from collections.abc import Iterator

import pytest

from tfdist.cluster.rendezvous.newcomers import Newcomers, Unfinished


def read(received: bytes) -> bytes | Unfinished | None:
    """Reads a line "hello ..."; after a line "more" it asks for another one."""
    *lines, _ = received.split(b"\n")
    if not lines:
        return Unfinished()
    if lines == [b"more"]:
        return Unfinished(ask=b"go on\n")
    return lines[-1] if lines[-1].startswith(b"hello") else None


class Port:
    """A port with newcomers, and the connections of a test to it."""

    def __init__(self, closing: contextlib.ExitStack) -> None:
        self._closing = closing
        self._listener = closing.enter_context(socket.create_server(("127.0.0.1", 0), backlog=64))
        self.strangers: list[str] = []
        self.newcomers = Newcomers(
            [self._listener],
            read,
            limit_s=0.5,
            most_bytes=100,
            most=3,
            on_stranger=self.strangers.append,
        )
        closing.callback(self.newcomers.close)

    def knock(self, said: bytes = b"") -> socket.socket:
        connection = socket.create_connection(self._listener.getsockname(), timeout=10.0)
        self._closing.enter_context(connection)
        connection.sendall(said)
        return connection

    def look(self, wait_s: float = 0.0) -> list[bytes]:
        admitted = self.newcomers.look(wait_s)
        for one in admitted:
            self._closing.enter_context(one.connection)
        return [one.message for one in admitted]


@pytest.fixture
def port() -> Iterator[Port]:
    with contextlib.ExitStack() as closing:
        yield Port(closing)


def is_closed(connection: socket.socket) -> bool:
    with contextlib.suppress(ConnectionResetError):
        return connection.recv(1) == b""
    return True


def test_a_message_is_admitted_past_silent_and_slow_ones(port: Port) -> None:
    port.knock()
    slow = port.knock(b"hel")
    port.knock(b"hello 1\n")
    assert port.look(5.0) == [b"hello 1"]
    slow.sendall(b"lo 2\nand")
    assert port.look(5.0) == [b"hello 2"]
    assert port.strangers == []


@pytest.mark.parametrize("said", [b"GET /\n", b"\xff" * 1000, b"more\nagain\n"])
def test_another_message_or_one_that_is_too_long_is_closed(port: Port, said: bytes) -> None:
    stranger = port.knock(said)
    assert port.look(5.0) == []
    assert is_closed(stranger)
    assert port.strangers == ["127.0.0.1"]


def test_a_health_check_is_no_stranger(port: Port) -> None:
    port.knock().close()
    assert port.look(5.0) == []
    assert port.strangers == []


def test_one_that_says_nothing_is_closed_after_the_limit(port: Port) -> None:
    silent = port.knock()
    while not port.strangers:
        assert port.look(0.05) == []
    assert is_closed(silent)


def test_the_oldest_of_too_many_is_closed(port: Port) -> None:
    first, *others = [port.knock() for _ in range(4)]
    assert port.look(5.0) == []
    assert is_closed(first)
    for number, connection in enumerate(others):
        connection.sendall(b"hello %d\n" % number)
        assert port.look(5.0) == [b"hello %d" % number]


def test_a_list_is_asked_for_and_may_be_longer(port: Port) -> None:
    one = port.knock(b"more\n")
    assert port.look(5.0) == []
    assert one.recv(100) == b"go on\n"
    one.sendall(b"hello" + b"x" * 1000 + b"\n")
    assert port.look(5.0) == [b"hello" + b"x" * 1000]


def test_without_a_free_descriptor_the_oldest_is_closed(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = port.knock()
    assert port.look(5.0) == []
    accept = socket.socket.accept
    refusals = [OSError(errno.EMFILE, "Too many open files")]

    def refuse_once(listener: socket.socket) -> object:
        if refusals:
            raise refusals.pop()
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", refuse_once)
    port.knock(b"hello\n")
    assert port.look(5.0) == []
    assert is_closed(silent)
    assert port.look(5.0) == [b"hello"]
