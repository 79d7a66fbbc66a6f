"""Network addresses as a cluster lists them: "host:port", an IPv6 host in brackets."""

import ipaddress
import json
import re

_LOOPBACK_NAMES = ("localhost", "localhost.localdomain", "ip6-localhost")


def split_address(address: str) -> tuple[str, int]:
    """Splits "host:port" into its two parts; an IPv6 host loses its brackets.

    Args:
      address: For example "gpu1:3737", "10.0.0.2:3737" or "[fe80::1]:3737".

    Returns:
      The host and the port.

    Raises:
      ValueError: If it is not such an address. The message is the second half of a sentence
        whose first half says where the address stands.
    """
    host, colon, port_text = address.rpartition(":")
    if not colon or address.endswith("]"):
        raise ValueError('it has no port. Write "host:port", for example "localhost:3737".')
    if not host:
        raise ValueError('it has no host. Write "host:port", for example "localhost:3737".')
    if not re.fullmatch(r"[0-9]{1,5}", port_text) or not 1 <= int(port_text) <= 65535:
        raise ValueError(f"{_quoted(port_text)} is not a port. Use a number from 1 to 65535.")
    return _checked_host(host), int(port_text)


def is_loopback(host: str) -> bool:
    """Whether the host means "this machine" on every machine (localhost, 127.x, ::1, 0.0.0.0)."""
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return host.lower() in _LOOPBACK_NAMES or host.lower().endswith(".localhost")
    return ip.is_loopback or ip.is_unspecified


def _checked_host(host: str) -> str:
    if host.startswith("[") and host.endswith("]"):
        try:
            return str(ipaddress.IPv6Address(host[1:-1]))
        except ValueError:
            raise ValueError(
                f"{_quoted(host)[1:-1]} is not an IPv6 address. Write [address]:port."
            ) from None
    if "://" in host:
        raise ValueError('it starts with a protocol. Write only "host:port".')
    if ":" in host:
        raise ValueError("its host has a colon. Put an IPv6 address in brackets: [::1]:3737.")
    labels = host.removesuffix(".").split(".")
    if not all(re.fullmatch(r"[A-Za-z0-9_-]{1,63}", label) for label in labels):
        raise ValueError(
            f"{_quoted(host)} is not a host. "
            'Use a name of letters, digits, "-", "_" and ".", or an IP.'
        )
    return host


def _quoted(text: str) -> str:
    return json.dumps(text if len(text) <= 40 else f"{text[:37]}...")  # on one line, whatever it is
