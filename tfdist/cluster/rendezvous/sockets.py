"""Listening and connecting for the rendezvous: limits, all addresses of a host, plain words."""

import errno
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tfdist.cluster.rendezvous.protocol import Member, PortTakenError, RendezvousError
from tfdist.cluster.tasks import is_loopback, split_address

# How long any wait may last before this process looks at its clock again.
POLL_S = 0.1
# Long enough for one lost packet: Linux repeats the first packet of a connection after 1 s.
_CONNECT_LIMIT_S = 2.0
_NO_SUCH_ADDRESS = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


class Patience:
    """A time limit, and when the next word about the waiting is due."""

    def __init__(self, limit_s: float, report_every_s: float) -> None:
        """Starts the clock."""
        self.limit_s = limit_s
        self.has_reported = False
        self._report_every_s = report_every_s
        self._start = time.monotonic()
        self._next_report = self._start + report_every_s

    @property
    def waited_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._start

    def is_over(self, grace_s: float = 0.0) -> bool:
        """Whether the limit, and `grace_s` beyond it, have passed."""
        return self.waited_s > self.limit_s + grace_s

    def report_is_due(self) -> bool:
        """Whether to say something now; true once for each interval."""
        now = time.monotonic()
        if now < self._next_report:
            return False
        self._next_report = now + self._report_every_s
        self.has_reported = True
        return True


@contextmanager
def listening(member: Member) -> Iterator[list[socket.socket]]:
    """Listens on the member's port while the block runs.

    A loopback address is listened on alone. For any other the port is taken on all interfaces, as
    TensorFlow's server will do: a host may know its own name by an address that others don't see.

    Args:
      member: This worker, with its own address.

    Yields:
      Listening sockets that do not block, one or (for localhost with IPv4 and IPv6) two.

    Raises:
      RendezvousError: If the port is in use or may not be used.
    """
    listeners: list[socket.socket] = []
    try:
        for family, host, port in _own_endpoints(member.address):
            try:
                listeners.append(_listener(family, host, port))
            except OSError as error:
                if error.errno in _NO_SUCH_ADDRESS:  # IPv6 is resolved but switched off, say
                    continue
                raise _cannot_listen(member, port, error) from None
        if not listeners:
            problem = OSError(errno.EADDRNOTAVAIL, "no such address on this machine")
            raise _cannot_listen(member, split_address(member.address)[1], problem)
        yield listeners
    finally:
        for listener in listeners:
            listener.close()


def connect(address: str) -> socket.socket:
    """Connects to "host:port", trying each address the host resolves to; an OSError if none does.

    Ctrl-C interrupts it; it takes at most 2 s for each address, and what the host's name takes.
    """
    host, port = split_address(address)
    connection = socket.create_connection((host, port), timeout=_CONNECT_LIMIT_S)
    # Where nobody listens, the kernel may connect a local port to itself (if it picks the same
    # number for this end). Reset, or the owner could not listen there for a minute.
    if connection.getsockname() == connection.getpeername():
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
        raise ConnectionRefusedError(errno.ECONNREFUSED, "connection refused")
    return connection


def why_not_connected(error: OSError) -> str:
    """Says in a few words why `connect` failed."""
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens there"
    if isinstance(error, socket.gaierror):
        return "its host name is unknown here"
    if isinstance(error, TimeoutError):
        return "no answer"
    return (error.strerror or type(error).__name__).lower()


def _own_endpoints(address: str) -> list[tuple[socket.AddressFamily, str, int]]:
    host, port = split_address(address)
    if not is_loopback(host):
        everywhere = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
        return [(everywhere, "", port)]
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror:  # a container without /etc/hosts
        return [(socket.AF_INET, "127.0.0.1", port)]
    endpoints = dict.fromkeys((family, str(where[0]), port) for family, _, _, _, where in found)
    return sorted(endpoints, key=lambda endpoint: endpoint[0] != socket.AF_INET)


def _listener(family: socket.AddressFamily, host: str, port: int) -> socket.socket:
    # SO_REUSEADDR (set by create_server): connections of an earlier run that the kernel still
    # remembers are no obstacle. Without SO_REUSEPORT a second listener is noticed.
    dual = family == socket.AF_INET6 and not host
    listener = socket.create_server((host, port), family=family, dualstack_ipv6=dual, backlog=1024)
    listener.setblocking(False)
    return listener


def port_taken_error(member: Member) -> PortTakenError:
    """Returns the error of a worker whose port somebody else has."""
    return PortTakenError(
        f"port {split_address(member.address)[1]} (this worker's address, {member}) is already in "
        "use.\nWas this task started twice? Stop the process that listens there (see `ss -ltnp`), "
        "or choose another port."
    )


def _cannot_listen(member: Member, port: int, error: OSError) -> RendezvousError:
    if error.errno == errno.EADDRINUSE:
        return port_taken_error(member)
    if error.errno == errno.EACCES:
        return RendezvousError(
            f"port {port} (this worker's address, {member}) may not be used by this user. "
            "Choose a port from 1024."
        )
    return RendezvousError(
        f"cannot listen on {member}, this worker's address: {error.strerror}. "
        "Check the address in TF_CONFIG."
    )
