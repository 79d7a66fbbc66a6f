"""Virtual hosts on this machine: their networks, their hostnames, and remote shells to them."""

import json
import os
import runpy
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from virtual_hosts import (
    SshServers,
    VirtualHost,
    VirtualNetwork,
    find_sshd,
    virtual_network,
    why_impossible,
)

from tfdist.testing.run import wait_until

_FOLDER = Path(__file__).parent
_NAMES = ("tfd1", "tfd2", "tfd3")
_END_LIMIT_S = 20.0
_START_LIMIT_S = 40.0


@pytest.fixture(scope="session")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VirtualNetwork]:
    """Three hosts tfd1, tfd2 and tfd3 in a network that nothing else is in."""
    problem = why_impossible()
    if problem is not None:
        pytest.skip(problem)
    with virtual_network(_NAMES) as made:
        yield made


@pytest.fixture
def hosts(network: VirtualNetwork) -> Iterator[tuple[VirtualHost, ...]]:
    """The hosts, all plugged in; a test that leaves a process on one fails."""
    before = {pid for host in network.hosts for pid in host.processes()}

    def left() -> dict[int, str]:
        now = {
            pid: f"{h.name}: {text}" for h in network.hosts for pid, text in h.processes().items()
        }
        return {pid: text for pid, text in now.items() if pid not in before}

    yield network.hosts
    for host in network.hosts:
        network.reconnect(host)
    wait_until(lambda: not left(), _END_LIMIT_S)
    remaining = left()
    for pid in remaining:
        os.kill(pid, signal.SIGKILL)
    assert not remaining, f"the test left processes on the hosts: {remaining}"


@pytest.fixture(scope="session")
def fake_agent(network: VirtualNetwork) -> str:
    """A program in place of mpirun's remote shell that needs no server."""
    return network.write_agent()


@pytest.fixture(scope="session")
def ssh_agent(network: VirtualNetwork) -> Iterator[str]:
    """The command of a real ssh client that reaches the hosts' real sshd with a key."""
    if find_sshd() is None:
        pytest.skip("needs sshd and ssh (Debian: openssh-server)")
    servers = SshServers(network)
    for host in network.hosts:
        servers.start(host)
    try:
        for host in network.hosts:
            reached = wait_until(
                lambda host=host: (
                    host.run([*servers.client.split(), host.name, "true"]).returncode == 0
                ),
                _START_LIMIT_S,
            )
            assert reached, f"no sshd on {host.name}: {servers.log()}"
        yield servers.client
    finally:
        for host in network.hosts:
            servers.stop(host)


@pytest.fixture(scope="session")
def train_linear() -> str:
    """The path of a short training program."""
    return str(_FOLDER / "train_linear.py")


@pytest.fixture(scope="session")
def meet_others() -> str:
    """The path of a program whose workers only meet each other, without TensorFlow."""
    return str(_FOLDER / "meet_others.py")


@pytest.fixture(scope="session")
def check_weights(
    train_linear: str, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Path, int], None]:
    """Checks that the workers' weights in a folder equal those of one process."""
    folder = tmp_path_factory.mktemp("one-process")
    program = runpy.run_path(train_linear)
    arguments = program["parse_arguments"]([f"--model-dir={folder}", f"--out={folder}"])
    program["train"](arguments, None)
    expected = json.loads((folder / "0").read_text())

    def check(out: Path, num_workers: int) -> None:
        found = [json.loads((out / str(worker)).read_text()) for worker in range(num_workers)]
        assert found == [found[0]] * num_workers
        assert found[0] == pytest.approx(expected, rel=0, abs=1e-6)

    return check
