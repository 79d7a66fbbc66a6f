"""Strangers at the port of rank 0 neither keep the ranks of Horovod from joining nor delay them."""

import contextlib
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from tfdist.cluster.rendezvous.newcomers import Unfinished
from tfdist.strategies.horovod import membership
from tfdist.strategies.horovod.membership import _accept_all, read_hello

KEY = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=64) as made:
        yield made


def knock(listener: socket.socket, said: bytes) -> socket.socket:
    connection = socket.create_connection(listener.getsockname())
    connection.settimeout(10.0)
    connection.sendall(said)
    return connection


def check_joined(listener: socket.socket, size: int) -> None:
    """Lets all other ranks connect; they and no one else get "go"."""
    ranks = {rank: knock(listener, f"{KEY} {rank}".encode()) for rank in range(1, size)}
    joined = _accept_all(listener, size, KEY)
    assert joined is not None and sorted(joined) == sorted(ranks)
    for rank, connection in ranks.items():
        assert connection.recv(3) == b"go\n"
        assert joined[rank].getpeername() == connection.getsockname()
        connection.close()
        joined[rank].close()


@pytest.mark.parametrize(
    "said",
    [
        b"\xff 1",
        b"\xff\xfe\xfd" * 60,
        "\u0663 \u0661".encode(),
        b" \n ",
        b"GET / HTTP/1.1\r\n\r\n",
        b"0" * 32 + b" 1",
        f"{KEY} 0".encode(),
        f"{KEY} 3".encode(),
        f"{KEY} -1".encode(),
        f"{KEY} {'9' * 100}".encode(),
        f"{KEY} \u00b2".encode(),
    ],
)
def test_a_strangers_bytes_are_dropped_and_the_ranks_join(
    listener: socket.socket, said: bytes
) -> None:
    with knock(listener, said) as stranger:
        check_joined(listener, 3)
        with contextlib.suppress(ConnectionResetError):
            assert stranger.recv(1) == b""


def test_any_first_message_to_rank_0(mutated_lines: Callable[..., Iterator[bytes]]) -> None:
    known = 0
    for said in mutated_lines([f"{KEY} {rank}".encode() for rank in range(1, 9)]):
        rank = read_hello(said, size=9, key=KEY.encode())
        assert rank is None or isinstance(rank, Unfinished) or 0 < rank < 9
        known += isinstance(rank, int)
    assert known > 20


def test_silent_strangers_delay_no_rank(listener: socket.socket) -> None:
    with contextlib.ExitStack() as strangers:
        for _ in range(5):
            strangers.enter_context(knock(listener, b""))
        began_s = time.monotonic()
        check_joined(listener, 2)
        assert time.monotonic() - began_s < membership._HELLO_LIMIT_S


def test_a_watch_that_cannot_be_had_is_said_in_one_line(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(membership, "_LIMIT_S", 0.3)
    with knock(listener, f"{KEY} 2".encode()) as one:
        assert _accept_all(listener, 9, KEY) is None
        assert one.recv(1) == b""  # None is watched, or all are.
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(
        "The ranks do not watch each other: of 9 ranks, 1, 3, 4, 5 and 3 more did not connect to "
        f"rank 0 on port {listener.getsockname()[1]} within 0.3 s."
    )
    assert "A rank that is stopped or hangs is not named" in line
