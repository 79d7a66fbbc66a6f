"""Sockets of the rendezvous: limits of a wait, listening, connecting, and errors in words."""

import errno
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from tfdist.cluster.rendezvous.protocol import (
    Member,
    PortTakenError,
    RendezvousError,
    waiting_line,
)
from tfdist.cluster.tasks import is_loopback, split_address
from tfdist.process.endings import print_to_stderr

# The longest wait before this process looks at its clock again.
POLL_S = 0.1
_MAX_PAUSE_S = 0.2
# Long enough for one lost packet: Linux repeats the first packet of a connection after 1 s.
_CONNECT_LIMIT_S = 2.0
# A host that does not answer is lost after so long: TCP's limit for what is sent, and for probes.
_UNREACHABLE_S = 20
_TCP_RTO_MAX_MS = 44  # linux/tcp.h; Python's socket has no name for it.
# A connection without a hello by then is a port scan or another program.
HELLO_LIMIT_S = 5.0
_NO_SUCH_ADDRESS = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


class Patience:
    """The limit of a wait, whose clock starts here; `say` gets its lines for the user."""

    def __init__(
        self,
        limit_s: float = 300.0,
        report_every_s: float = 5.0,
        say: Callable[[str], None] = print_to_stderr,
    ) -> None:
        self.limit_s = limit_s
        self.say = say
        self.has_reported = False
        self._report_every_s = report_every_s
        self._start = time.monotonic()
        self._next_report = self._start + report_every_s

    @property
    def waited_s(self) -> float:
        return time.monotonic() - self._start

    def pause(self) -> None:
        """Sleeps before the next try: from 10 ms, as workers start together, up to 0.2 s."""
        time.sleep(min(0.01 + self.waited_s / 4, _MAX_PAUSE_S))

    def is_over(self, grace_s: float = 0.0) -> bool:
        """Returns whether the limit and `grace_s` beyond it have passed."""
        return self.waited_s > self.limit_s + grace_s

    def report_is_due(self) -> bool:
        """Returns whether a report is due now; true once in each interval."""
        now = time.monotonic()
        if now < self._next_report:
            return False
        self._next_report = now + self._report_every_s
        self.has_reported = True
        return True

    def report(self, missing: str, problem: str = "") -> None:
        """Names who is missing, and why, if a report is due."""
        if self.report_is_due():
            self.say(waiting_line(missing, self.waited_s, self.limit_s, problem))


@contextmanager
def listening(member: Member) -> Iterator[list[socket.socket]]:
    """Listens on the member's port while the block runs; a RendezvousError if it may not be used.

    For a loopback address the port is taken there only. For any other it is taken on all
    interfaces, as TensorFlow's server does: a host may resolve its own name to an address that the
    others do not see. The sockets do not block; for localhost there may be two, IPv4 and IPv6.
    """
    listeners: list[socket.socket] = []
    try:
        for family, host, port in _own_endpoints(member.address):
            try:
                listeners.append(_listener(family, host, port))
            except OSError as error:
                if error.errno in _NO_SUCH_ADDRESS:  # For example, IPv6 is switched off.
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
    """Connects to "host:port" at the first of the host's addresses that answers, else an OSError.

    Ctrl-C interrupts it. It takes at most 2 s for each address, and the look-up of the host's name.
    """
    host, port = split_address(address)
    connection = socket.create_connection((host, port), timeout=_CONNECT_LIMIT_S)
    # If no process listens on a local port, the kernel may connect it to itself (when it picks the
    # same number for this end). Reset it, or the owner could not listen there for a minute.
    if connection.getsockname() == connection.getpeername():
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
        raise ConnectionRefusedError(errno.ECONNREFUSED, "connection refused")
    return connection


def has_ended(connection: socket.socket) -> bool:
    """Returns whether the other side has ended the connection, even if that is not read yet."""
    try:
        return not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True


def retry_each_second(connection: socket.socket, limit_s: int) -> None:
    """Makes TCP send again each second what the other host has not confirmed, for `limit_s`.

    By itself TCP doubles the time between its attempts: of the first 20 s the last is after 13 s,
    so a link that is back later is not noticed in time. Before Linux 6.15 it does so here, too.
    """
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * limit_s)
    with suppress(OSError):
        connection.setsockopt(socket.IPPROTO_TCP, _TCP_RTO_MAX_MS, 1000)


def end_with_host(connection: socket.socket) -> None:
    """Makes TCP end the connection 20 s after the last sign of the other host."""
    retry_each_second(connection, _UNREACHABLE_S)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)


def why_not_connected(error: OSError) -> str:
    """Returns in a few words why `connect` failed."""
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
    # SO_REUSEADDR (set by create_server): the port can be taken though the kernel still remembers
    # connections of an earlier run. Without SO_REUSEPORT a second listener gets an error.
    dual = family == socket.AF_INET6 and not host
    listener = socket.create_server((host, port), family=family, dualstack_ipv6=dual, backlog=1024)
    listener.setblocking(False)
    return listener


def port_taken_error(member: Member) -> PortTakenError:
    """Returns the error of a worker whose port another process has."""
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
