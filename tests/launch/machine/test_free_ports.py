"""Free ports: not in use, outside the kernel's range, and released afterwards."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tfdist.launch.machine.ports import candidate_ports
from tfdist.testing import ReservedPorts

HOLD_20_PORTS = (
    "import sys; from tfdist.testing import ReservedPorts; held = ReservedPorts(20)\n"
    "print(*held.ports, flush=True); sys.stdin.read(); held.release()"
)


def narrow(monkeypatch: pytest.MonkeyPatch, *ports: int) -> None:
    monkeypatch.setattr("tfdist.launch.machine.ports.candidate_ports", lambda first, last: ports)


def test_ports_lie_below_the_range_of_outgoing_connections() -> None:
    ports = candidate_ports(32768, 60999)
    assert (min(ports), max(ports)) == (10000, 32767)


def test_ports_lie_above_that_range_if_there_is_no_room_below() -> None:
    ports = candidate_ports(1024, 60999)
    assert (min(ports), max(ports)) == (61000, 65535)


def test_without_room_at_all_every_port_may_serve() -> None:
    assert len(candidate_ports(1024, 65535)) > 50_000


@pytest.mark.processes
def test_concurrent_choosers_never_share_a_port() -> None:
    choosers = [
        subprocess.Popen(
            [sys.executable, "-c", HOLD_20_PORTS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[3],
        )
        for _ in range(4)
    ]
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
    chooser = subprocess.Popen(
        [sys.executable, "-c", HOLD_20_PORTS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )
    with chooser:
        assert chooser.stdout is not None
        ports = [int(port) for port in chooser.stdout.readline().split()]
        chooser.kill()
        chooser.wait(30)
    narrow(monkeypatch, *ports)
    with ReservedPorts(20) as held:
        assert sorted(held.ports) == sorted(ports)
