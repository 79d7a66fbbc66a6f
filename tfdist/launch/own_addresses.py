"""Under which addresses other machines reach this one."""

from __future__ import annotations

import ipaddress
import socket

import psutil

from tfdist.launch.errors import UsageError


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
