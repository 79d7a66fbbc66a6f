"""Free ports of this machine, and the addresses at which other machines reach it."""

from __future__ import annotations

import errno
import ipaddress
import random
import socket
from collections.abc import Sequence
from pathlib import Path

import psutil

from tfdist.launch.errors import UsageError

# What to do on a machine whose loopback has IPv6 alone.
ADD_LOOPBACK = "Run as root: ip address add 127.0.0.1/8 dev lo"
_FIRST_PORT = 10_000  # well-known services use ports below
_LAST_PORT = 65_535
_ENOUGH_PORTS = 1_000
_LINUX_DEFAULT_EPHEMERAL = (32_768, 60_999)


class ReservedPorts:
    """Free ports, reserved by locks until `release`.

    The ports are outside the range that the kernel uses for outgoing connections, if enough ports
    are. No process listened on them when they were chosen. Other users of this class do not get
    them until `release`. A process that dies releases its ports.
    """

    def __init__(self, count: int) -> None:
        """Reserves `count` ports; an OSError if there are fewer free ports."""
        self._locks: dict[int, socket.socket] = {}
        candidates = candidate_ports(*_ephemeral_range())
        # A random start keeps concurrent test runs from trying the same ports in turn.
        start = random.SystemRandom().randrange(len(candidates))
        for port in (*candidates[start:], *candidates[:start]):
            if len(self._locks) == count:
                break
            lock = _lock(port)
            if lock is None:
                continue
            if _is_free(port):
                self._locks[port] = lock
            else:
                lock.close()
        if len(self._locks) < count:
            self.release()
            raise OSError(f"found {len(self._locks)} free ports, {count} are needed")

    @property
    def ports(self) -> tuple[int, ...]:
        """The reserved ports, in the order in which they were found."""
        return tuple(self._locks)

    def release(self) -> None:
        """Releases the ports. A second call has no effect."""
        while self._locks:
            self._locks.popitem()[1].close()

    def __enter__(self) -> ReservedPorts:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def candidate_ports(first_ephemeral: int, last_ephemeral: int) -> Sequence[int]:
    """Returns the ports to choose from: below the ephemeral range, else above, else all."""
    below = range(_FIRST_PORT, first_ephemeral)
    above = range(last_ephemeral + 1, _LAST_PORT + 1)
    for ports in (below, above):
        if len(ports) >= _ENOUGH_PORTS:
            return ports
    return range(_FIRST_PORT, _LAST_PORT + 1)


def _ephemeral_range() -> tuple[int, int]:
    try:
        first, last = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    except (OSError, ValueError):
        return _LINUX_DEFAULT_EPHEMERAL
    return int(first), int(last)


def _is_free(port: int) -> bool:
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            probe = socket.socket(family, socket.SOCK_STREAM)
        except OSError:
            continue  # a machine without IPv6
        with probe:
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                # Without SO_REUSEADDR, and on all addresses at once: this fails if any process
                # uses the port on any address, including gRPC servers with SO_REUSEPORT.
                probe.bind(("", port))
            except OSError as error:
                if family == socket.AF_INET6 and error.errno != errno.EADDRINUSE:
                    continue
                return False
    return True


def _lock(port: int) -> socket.socket | None:
    """Returns a socket that locks the port by its name, or None if the port is locked already.

    A name in Linux's abstract namespace belongs to one process and disappears with it. It is valid
    within a network namespace, as the ports are (unix(7)).
    """
    lock = socket.socket(socket.AF_UNIX)
    try:
        lock.bind(f"\0tfdist-port-{port}")
    except OSError:
        lock.close()
        return None
    return lock


def own_addresses(subnet: str | None) -> list[str]:
    """Returns this machine's IPv4 addresses without loopback, followed by its name.

    With a subnet such as "10.0.0.0/24", only the addresses in it are returned, without the name; a
    UsageError if there are none.
    """
    addresses = [
        one.address
        for interface in psutil.net_if_addrs().values()
        for one in interface
        if one.family == socket.AF_INET and not ipaddress.ip_address(one.address).is_loopback
    ]
    if subnet is None:
        return [*addresses, socket.gethostname()]
    network = ipaddress.ip_network(subnet, strict=False)
    inside = [address for address in addresses if ipaddress.ip_address(address) in network]
    if not inside:
        raise UsageError(
            f"--host-subnet is {subnet}, and this machine has only {', '.join(addresses) or 'none'}"
            ". Name a network that it is in."
        )
    return inside
