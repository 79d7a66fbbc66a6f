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
import hmac
import json
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

import psutil
import tensorflow.compat.v1 as v1

from tfdist.cluster.rendezvous.membership import Membership
from tfdist.cluster.rendezvous.protocol import (
    Member,
    RendezvousError,
    different_versions,
    installed_versions,
)

_CONNECT_LIMIT_S = 2.0
_LIMIT_S = 10.0
_HELLO_LIMIT_S = 2.0
_HELLO_MAX_BYTES = 200
_GO = b"go\n"


def join_ranks(
    rank: int, *, on_one_host: bool, exchange: Callable[[str], Sequence[str]]
) -> Membership | None:
    """Connects all ranks with rank 0. A collective: every rank must call it.

    Where all ranks are on one host, the port is open there only. `exchange` sends a text to all
    ranks, and returns those of all, in the order of ranks.

    Returns:
      This rank's connections; None if a rank cannot reach rank 0.

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
        check_versions(members, [one["installed"] for one in offers])
        if listener is not None:
            connections = _accept_all(listener, len(offers), offers[0]["key"])
        else:
            connections = _connect(rank, offers[0])
    if connections is None:
        if rank == 0:
            v1.logging.warning(
                "Not all ranks can reach rank 0 on a port of its own, so none can name a rank that "
                "is stopped. Is there a firewall between the hosts?"
            )
        return None
    return Membership(members, rank, connections)


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
    """Returns the addresses of this host for other hosts, those of IPv4 first."""
    is_up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    found = [
        one
        for name, addresses in psutil.net_if_addrs().items()
        for one in addresses
        if name in is_up and one.family in (socket.AF_INET, socket.AF_INET6)
    ]
    found.sort(key=lambda one: one.family != socket.AF_INET)
    usable = [one.address for one in found if not one.address.startswith(("127.", "fe80:", "::1"))]
    return [*usable, "127.0.0.1"]


def _accept_all(listener: socket.socket, size: int, key: str) -> dict[int, socket.socket] | None:
    """Returns the connections of all other ranks, after "go"; None if one does not come in time."""
    joined: dict[int, socket.socket] = {}
    until_s = time.monotonic() + _LIMIT_S
    while len(joined) < size - 1 and (left_s := until_s - time.monotonic()) > 0:
        listener.settimeout(left_s)
        try:
            connection, _ = listener.accept()
        except OSError:
            continue
        rank = _read_hello(connection, key)
        if rank is None or rank in joined or not 0 < rank < size:
            connection.close()
        else:
            joined[rank] = connection
    is_complete = len(joined) == size - 1
    for connection in joined.values():
        if is_complete:
            with contextlib.suppress(OSError):  # It has just ended, which the membership notices.
                connection.sendall(_GO)
        else:
            connection.close()
    return joined if is_complete else None


def _read_hello(connection: socket.socket, key: str) -> int | None:
    """Returns the rank of the process that connects; None if it does not know the key."""
    connection.settimeout(_HELLO_LIMIT_S)
    try:
        words = connection.recv(_HELLO_MAX_BYTES).decode("ascii", "replace").split()
    except OSError:
        return None
    if len(words) != 2 or not hmac.compare_digest(words[0], key) or not words[1].isdecimal():
        return None
    return int(words[1])


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
