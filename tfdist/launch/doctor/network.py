"""Ports of this machine, its name, and proxies that would come between workers."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass

from tfdist.launch.doctor.finding import Finding, absent, broken, good
from tfdist.launch.free_ports import ReservedPorts

_NAME_LIMIT_S = 3.0
# In this order gRPC takes the first that is set.
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")


@dataclass(frozen=True, kw_only=True)
class Network:
    """What a worker finds.

    Attributes:
      port_problem: Why no port of 127.0.0.1 can be used; "" if one can.
      has_ipv6: Whether ::1 can be used.
      proxy: The variable by which gRPC would go through a proxy; None without one. (Its value may
        have a password.)
      exempts_workers: Whether the user set no_grpc_proxy.
      host_name: This machine's name.
      host_addresses: Where that name leads; none if nowhere.
    """

    port_problem: str = ""
    has_ipv6: bool
    proxy: str | None = None
    exempts_workers: bool = False
    host_name: str
    host_addresses: tuple[str, ...]


def look_at_network(environ: Mapping[str, str] = os.environ) -> Network:
    """Tries ports, and looks up this machine's own name, for three seconds at most."""
    name = socket.gethostname()
    return Network(
        port_problem=_try_port(socket.AF_INET, "127.0.0.1"),
        has_ipv6=not _try_port(socket.AF_INET6, "::1"),
        proxy=next((variable for variable in _PROXIES if environ.get(variable)), None),
        exempts_workers=bool(environ.get("no_grpc_proxy")),
        host_name=name,
        host_addresses=_addresses(name),
    )


def judge_network(network: Network) -> list[Finding]:
    """Says whether workers can reach each other."""
    findings = [
        broken(
            f"no port of 127.0.0.1 can be used: {network.port_problem}",
            "Run as root: ip link set lo up",
        )
        if network.port_problem
        else good("ports of 127.0.0.1 can be used")
    ]
    findings.append(
        good("IPv6 works on this machine (::1)")
        if network.has_ipv6
        else absent("no IPv6 on this machine")
    )
    if network.proxy is not None:
        how = "no_grpc_proxy is set, and tfdist adds the workers' hosts"
        if not network.exempts_workers:
            how = "tfdist sets no_grpc_proxy, so that workers reach each other directly"
        findings.append(good(f"{network.proxy} is set: {how}"))
    if network.host_addresses:
        addresses = ", ".join(network.host_addresses)
        findings.append(good(f"this host's name, {network.host_name}, leads to {addresses}"))
    else:
        findings.append(
            absent(
                f"this host's name, {network.host_name}, leads nowhere; runs over several hosts "
                "need it",
                f"Run as root: echo '127.0.1.1 {network.host_name}' >> /etc/hosts",
            )
        )
    return findings


def _try_port(family: socket.AddressFamily, host: str) -> str:
    """Returns why a worker could not listen there and be reached; "" if it can."""
    try:
        with ReservedPorts(1) as reserved, socket.socket(family) as listener:
            listener.bind((host, reserved.ports[0]))
            listener.listen(1)
            with socket.create_connection((host, reserved.ports[0]), timeout=_NAME_LIMIT_S):
                return ""
    except OSError as error:
        return str(error)


def _addresses(name: str) -> tuple[str, ...]:
    found: list[str] = []

    def look_up() -> None:
        try:
            answers = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except OSError:
            return
        found.extend(dict.fromkeys(str(answer[4][0]) for answer in answers))

    # The system's look-up has no limit of its own.
    thread = threading.Thread(target=look_up, daemon=True)
    thread.start()
    thread.join(_NAME_LIMIT_S)
    return tuple(found)
