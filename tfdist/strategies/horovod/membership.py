"""The membership of Horovod's ranks: rank 0 listens, and the others connect to it.

Over gRPC the connections of the rendezvous are kept. Horovod has its own rendezvous, so the ranks
exchange rank 0's addresses through Horovod, once:

    rank 0                               rank 1, 2, ...
    listens on a free port
    addresses, port, key  --Horovod-->   connects to the first address that answers
                          <-----------   key, rank
    "go" to all           ----------->   sends its state from now on
"""

from __future__ import annotations

import contextlib
import functools
import hmac
import json
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

import psutil

from tfdist.cluster.rendezvous.membership import STALL_TIMEOUT, Membership
from tfdist.cluster.rendezvous.newcomers import MOST_STRANGERS, Newcomers, Unfinished
from tfdist.cluster.rendezvous.protocol import (
    Member,
    RendezvousError,
    different_versions,
    installed_versions,
)
from tfdist.process.endings import print_to_stderr

_CONNECT_LIMIT_S = 2.0
_LIMIT_S = 10.0
_HELLO_LIMIT_S = 2.0
_HELLO_MAX_BYTES = 200
_LOOK_S = 0.1
_MOST_NAMED = 4
_GO = b"go\n"


def join_ranks(
    rank: int, *, on_one_host: bool, exchange: Callable[[str], Sequence[str]]
) -> Membership | None:
    """Connects all ranks with rank 0. A collective: every rank must call it.

    Where all ranks are on one host, the port is open there only. `exchange` sends a text to all
    ranks, and returns those of all, in the order of ranks.

    Returns:
      This rank's connections; None if a rank cannot reach rank 0, which rank 0 says in one line.

    Raises:
      RendezvousError: If a rank has other versions of tfdist or TensorFlow than rank 0.
    """
    with contextlib.ExitStack() as closing:
        offer: dict[str, Any] = {"host": socket.gethostname(), "installed": installed_versions()}
        listener = None
        if rank == 0:
            listener = closing.enter_context(_listen(on_one_host))
            offer["port"] = listener.getsockname()[1]
            offer["addresses"] = ["127.0.0.1"] if on_one_host else _own_addresses()
            offer["key"] = secrets.token_hex(16)
        offers = [json.loads(text) for text in exchange(json.dumps(offer))]
        members = [Member(name=f"worker {i}", address=o["host"]) for i, o in enumerate(offers)]
        check_versions(members, [offered["installed"] for offered in offers])
        if listener is not None:
            connections = _accept_all(listener, len(offers), offers[0]["key"])
        else:
            connections = _connect(rank, offers[0])
    return None if connections is None else Membership(members, rank, connections)


def check_versions(members: Sequence[Member], installed: Sequence[str]) -> None:
    """Raises a RendezvousError if a rank has other versions than rank 0; all ranks know all."""
    for member, versions in zip(members, installed, strict=True):
        if versions != installed[0]:
            raise RendezvousError(different_versions(member, versions, members[0], installed[0]))


def _listen(on_one_host: bool) -> socket.socket:
    if on_one_host:
        return socket.create_server(("127.0.0.1", 0), backlog=1024)
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    return socket.create_server(("", 0), family=family, dualstack_ipv6=dual, backlog=1024)


def _own_addresses() -> list[str]:
    """Returns the addresses of this host for other hosts, IPv4 first."""
    is_up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    found = [
        address
        for name, addresses in psutil.net_if_addrs().items()
        for address in addresses
        if name in is_up and address.family in (socket.AF_INET, socket.AF_INET6)
    ]
    found.sort(key=lambda one: one.family != socket.AF_INET)
    usable = [
        line.address for line in found if not line.address.startswith(("127.", "fe80:", "::1"))
    ]
    return [*usable, "127.0.0.1"]


def _accept_all(listener: socket.socket, size: int, key: str) -> dict[int, socket.socket] | None:
    """Returns the connections of all other ranks, after "go"; None if one does not come in time.

    Strangers are dropped, and delay no rank.
    """
    joined: dict[int, socket.socket] = {}
    newcomers = Newcomers(
        [listener],
        functools.partial(read_hello, size=size, key=key.encode()),
        limit_s=_HELLO_LIMIT_S,
        most_bytes=_HELLO_MAX_BYTES,
        most=size + MOST_STRANGERS,
    )
    until_s = time.monotonic() + _LIMIT_S
    with contextlib.closing(newcomers):
        while len(joined) < size - 1 and time.monotonic() < until_s:
            for admitted in newcomers.look(_LOOK_S):
                if admitted.message in joined:
                    admitted.connection.close()
                else:
                    joined[admitted.message] = admitted.connection
    missing = [rank for rank in range(1, size) if rank not in joined]
    for connection in joined.values():
        if missing:
            connection.close()
        else:
            with contextlib.suppress(OSError):  # It has just ended, which the membership notices.
                connection.sendall(_GO)
    if missing:
        print_to_stderr(_no_watch(missing, size, str(listener.getsockname()[1])))
    return None if missing else joined


def read_hello(received: bytes, *, size: int, key: bytes) -> int | Unfinished | None:
    """Returns the rank in the bytes of a newcomer; None if it does not know the key.

    A rank sends all in one small message.
    """
    words = received.split()
    if not words or (len(words) == 1 and len(received) <= len(key) + 1):
        return Unfinished()
    # Digits of other scripts are none to `bytes`.
    if len(words) != 2 or not hmac.compare_digest(words[0], key) or not words[1].isdigit():
        return None
    rank = int(words[1]) if len(words[1]) <= len(str(size)) else 0
    return rank if 0 < rank < size else None


def _no_watch(missing: Sequence[int], size: int, port: str) -> str:
    """Returns the line about ranks that did not connect to rank 0, and what is lost by it."""
    named = ", ".join(str(rank) for rank in missing[:_MOST_NAMED])
    if len(missing) > _MOST_NAMED:
        named += f" and {len(missing) - _MOST_NAMED} more"
    return (
        f"The ranks do not watch each other: of {size} ranks, {named} did not connect to rank 0 on "
        f"port {port} within {_LIMIT_S:g} s. A rank that is stopped or hangs is not named, and the "
        f"others wait for it without a limit; {STALL_TIMEOUT} has no effect. Is there a firewall "
        "between the hosts?"
    )


def _connect(rank: int, offer: dict[str, Any]) -> dict[int, socket.socket] | None:
    """Returns the connection to rank 0, after its "go"; None if there is none."""
    for address in offer["addresses"]:
        try:
            connection = socket.create_connection((address, offer["port"]), _CONNECT_LIMIT_S)
        except OSError:
            continue
        try:
            connection.sendall(f"{offer['key']} {rank}".encode())
            connection.settimeout(_LIMIT_S + _CONNECT_LIMIT_S)
            if connection.recv(len(_GO), socket.MSG_WAITALL) == _GO:
                return {0: connection}
        except OSError:
            pass
        connection.close()
    return None
