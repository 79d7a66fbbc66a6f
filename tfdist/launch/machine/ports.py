"""Free ports of this machine, and the addresses under which other machines reach it."""

from __future__ import annotations

import errno
import ipaddress
import random
import socket
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import psutil

from tfdist.launch.errors import UsageError

_FIRST_PORT = 10_000  # below live the well-known services
_LAST_PORT = 65_535
_ENOUGH_PORTS = 1_000
_LINUX_DEFAULT_EPHEMERAL = (32_768, 60_999)


class ReservedPorts:
    """Free ports, held by locks until they are released.

    The ports lie outside the range from which the kernel serves outgoing connections, nobody
    listened on them when they were chosen, and nobody who chooses through this class gets them
    until `release`. A process that dies releases its ports.
    """

    def __init__(self, count: int) -> None:
        """Reserves `count` ports.

        Raises:
          OSError: If there are not that many free ports.
        """
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
        """The ports that are held, in the order in which they were found."""
        return tuple(self._locks)

    def release(self) -> None:
        """Gives the ports back; does nothing the second time."""
        while self._locks:
            self._locks.popitem()[1].close()

    def __enter__(self) -> ReservedPorts:
        """Returns the ports themselves."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Releases the ports."""
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
                # Without SO_REUSEADDR, and on every address at once: refused if anybody holds
                # the port on any address, gRPC's servers with SO_REUSEPORT among them.
                probe.bind(("", port))
            except OSError as error:
                if family == socket.AF_INET6 and error.errno != errno.EADDRINUSE:
                    continue
                return False
    return True


def _lock(port: int) -> socket.socket | None:
    """Returns a socket whose name is the port's lock, or None if somebody else has it.

    A name in Linux's abstract namespace belongs to one process, reaches as far as the ports
    themselves do (a network namespace), and is gone with the process.
    """
    lock = socket.socket(socket.AF_UNIX)
    try:
        lock.bind(f"\0tfdist-port-{port}")
    except OSError:
        lock.close()
        return None
    return lock


def own_addresses(subnet: str | None) -> list[str]:
    """Returns this machine's IPv4 addresses, without loopback; then its name.

    Args:
      subnet: Only those in this network, such as "10.0.0.0/24"; None: all.

    Raises:
      UsageError: If this machine is not in the network.
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
    inside = [one for one in addresses if ipaddress.ip_address(one) in network]
    if not inside:
        raise UsageError(
            f"--host-subnet is {subnet}, and this machine has only {', '.join(addresses) or 'none'}"
            ". Name a network that it is in."
        )
    return inside
