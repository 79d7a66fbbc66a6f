"""Free ports, and the launcher's addresses for agents on other machines."""

import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from tfdist.launch.errors import UsageError
from tfdist.launch.machine.ports import candidate_ports, own_addresses
from tfdist.testing import ReservedPorts

HOLD_20_PORTS = (
    "import sys; from tfdist.testing import ReservedPorts; held = ReservedPorts(20)\n"
    "print(*held.ports, flush=True); sys.stdin.read(); held.release()"
)


def narrow(monkeypatch: pytest.MonkeyPatch, *ports: int) -> None:
    monkeypatch.setattr("tfdist.launch.machine.ports.candidate_ports", lambda first, last: ports)


@pytest.mark.parametrize(
    ("ephemeral", "first", "last"),
    [
        ((32768, 60999), 10000, 32767),
        ((1024, 60999), 61000, 65535),  # there is no room below
        ((1024, 65535), 10000, 65535),  # there is no room at all
    ],
)
def test_ports_lie_outside_the_range_of_outgoing_connections_if_there_is_room(
    ephemeral: tuple[int, int], first: int, last: int
) -> None:
    ports = candidate_ports(*ephemeral)
    assert (min(ports), max(ports)) == (first, last)


def hold_20_ports() -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", HOLD_20_PORTS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )


@pytest.mark.processes
def test_concurrent_choosers_never_share_a_port() -> None:
    choosers = [hold_20_ports() for _ in range(4)]
    try:
        chosen = [chooser.stdout.readline().split() for chooser in choosers if chooser.stdout]
        with ReservedPorts(20) as ours:
            ports = [int(port) for line in chosen for port in line] + list(ours.ports)
        assert len(ports) == 100
        assert len(set(ports)) == 100
    finally:
        for chooser in choosers:
            chooser.communicate(timeout=30)
    assert [chooser.returncode for chooser in choosers] == [0, 0, 0, 0]


def test_a_held_port_is_not_given_again_until_it_is_released(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ReservedPorts(1) as first:
        narrow(monkeypatch, *first.ports)
        with pytest.raises(OSError, match="found 0 free ports, 1 are needed"):
            ReservedPorts(1)
    with ReservedPorts(1) as second:
        assert second.ports


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_a_port_with_a_listener_is_skipped(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    with ReservedPorts(2) as two:
        taken, free = two.ports
    with socket.socket() as listener:
        # As gRPC's servers do, which lets others with the same option listen beside them.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((address, taken))
        listener.listen()
        narrow(monkeypatch, taken, free)
        with ReservedPorts(1) as held:
            assert held.ports == (free,)


@pytest.mark.processes
def test_a_dead_process_holds_no_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    with hold_20_ports() as chooser:
        assert chooser.stdout is not None
        ports = [int(port) for port in chooser.stdout.readline().split()]
        chooser.kill()
        chooser.wait(30)
    narrow(monkeypatch, *ports)
    with ReservedPorts(20) as held:
        assert sorted(held.ports) == sorted(ports)


# The addresses of this machine.


@pytest.fixture
def interfaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with loopback, two networks, and IPv6."""

    def address(family: int, text: str) -> SimpleNamespace:
        return SimpleNamespace(family=family, address=text)

    found = {
        "lo": [address(socket.AF_INET, "127.0.0.1"), address(socket.AF_INET6, "::1")],
        "eth0": [address(socket.AF_INET, "10.0.0.7"), address(socket.AF_PACKET, "02:42:0a")],
        "eth1": [address(socket.AF_INET, "192.168.3.7"), address(socket.AF_INET6, "fe80::1%eth1")],
    }
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: found)
    monkeypatch.setattr(socket, "gethostname", lambda: "gpu1")


@pytest.mark.parametrize(
    ("subnet", "addresses"),
    [
        (None, ["10.0.0.7", "192.168.3.7", "gpu1"]),
        ("192.168.0.0/16", ["192.168.3.7"]),
        ("10.0.0.1/24", ["10.0.0.7"]),  # an address in it
    ],
)
def test_a_subnet_leaves_only_the_addresses_in_it_without_it_all_and_the_name(
    interfaces: None, subnet: str | None, addresses: list[str]
) -> None:
    assert own_addresses(subnet) == addresses


@pytest.mark.parametrize("subnet", ["172.16.0.0/12", "127.0.0.0/8", "fe80::/64"])
def test_a_subnet_that_this_machine_is_not_in_is_refused(interfaces: None, subnet: str) -> None:
    with pytest.raises(UsageError) as caught:
        own_addresses(subnet)
    message = str(caught.value)
    assert subnet in message
    assert "10.0.0.7, 192.168.3.7" in message
    assert message.count("\n") <= 1


def test_this_machine_has_no_loopback_among_its_addresses() -> None:
    assert not any(address.startswith("127.") for address in own_addresses(None)[:-1])
