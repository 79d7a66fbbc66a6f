"""The launcher's addresses for agents on other machines, which never include loopback."""

import socket
from types import SimpleNamespace

import psutil
import pytest

from tfdist.launch.errors import UsageError
from tfdist.launch.machine.ports import own_addresses


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


def test_all_networks_are_tried_and_then_the_name(interfaces: None) -> None:
    assert own_addresses(None) == ["10.0.0.7", "192.168.3.7", "gpu1"]


def test_a_subnet_leaves_only_the_addresses_in_it(interfaces: None) -> None:
    assert own_addresses("192.168.0.0/16") == ["192.168.3.7"]


def test_a_subnet_may_be_written_as_an_address_in_it(interfaces: None) -> None:
    assert own_addresses("10.0.0.1/24") == ["10.0.0.7"]


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
