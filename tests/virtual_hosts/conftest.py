"""Virtual hosts on this machine: their networks, their hostnames, and remote shells to them."""

import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tfdist.cluster.instance_variables import OF_ONE_RUN
from tfdist.testing.run import wait_until

_FOLDER = Path(__file__).parent
_REPOSITORY = _FOLDER.parents[1]
_NAMES = ("tfd1", "tfd2", "tfd3")
_END_LIMIT_S = 20.0
_START_LIMIT_S = 40.0
# Variables that would make a process on a host a part of the run around the tests.
_MEMBERSHIP = (*OF_ONE_RUN, "TFDIST_", "SLURM_", "SBATCH_", "SRUN_", "OMPI_", "HOROVOD_")
_DEFAULTS = {
    "OMP_NUM_THREADS": "1",  # the hosts share this machine's cores
    "PYTHONUNBUFFERED": "1",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "TF_USE_LEGACY_KERAS": "1",
}


@dataclass(frozen=True, kw_only=True)
class VirtualHost:
    """A host: commands run there with its network, hostname, /etc/hosts and shared memory."""

    name: str
    address: str
    pid: int  # its namespaces are the host's

    def command(self, command: Sequence[str], cwd: Path | str = _REPOSITORY) -> list[str]:
        """Returns the command that becomes this command on the host; its process id stays."""
        # Not `ip netns exec`: that mounts another /sys, without the cgroups that slurmd needs.
        enter = ("nsenter", f"--target={self.pid}", "--net", "--uts", "--mount")
        return [*enter, "--", "env", f"--chdir={cwd}", *map(str, command)]

    def popen(
        self,
        command: Sequence[str],
        *,
        cwd: Path | str = _REPOSITORY,
        env: Mapping[str, str] | None = None,
        **options: Any,
    ) -> "subprocess.Popen[str]":
        """Starts a command on the host."""
        options = {"text": True, "stdin": subprocess.DEVNULL, **options}
        environ = host_environment(env or {})
        return subprocess.Popen(self.command(command, cwd), env=environ, **options)

    def run(
        self,
        command: Sequence[str],
        *,
        cwd: Path | str = _REPOSITORY,
        env: Mapping[str, str] | None = None,
        timeout_s: float = 60.0,
        **options: Any,
    ) -> "subprocess.CompletedProcess[str]":
        """Runs a command on the host to its end and returns what it wrote."""
        options = {"text": True, "stdin": subprocess.DEVNULL, "capture_output": True, **options}
        environ = host_environment(env or {})
        command = self.command(command, cwd)
        return subprocess.run(command, env=environ, timeout=timeout_s, **options)

    def processes(self) -> dict[int, str]:
        """Returns the host's processes: process ids and command lines."""
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == self.pid:
                continue
            try:
                if os.stat(entry / "ns" / "net").st_ino == self._network:
                    words = (entry / "cmdline").read_text().split("\0")
                    if (entry / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
                        found[int(entry.name)] = " ".join(words)
            except OSError:
                continue  # it has just ended
        return found

    @property
    def _network(self) -> int:
        return os.stat(f"/proc/{self.pid}/ns/net").st_ino


@dataclass(frozen=True, kw_only=True)
class VirtualNetwork:
    """Hosts, and the switch between them."""

    hosts: tuple[VirtualHost, ...]
    switch_pid: int
    folder: Path

    def cut(self, host: VirtualHost) -> None:
        """Disconnects the host from the switch."""
        self._plug(host, "down")

    def reconnect(self, host: VirtualHost) -> None:
        """Connects the host to the switch again."""
        self._plug(host, "up")

    def _plug(self, host: VirtualHost, state: str) -> None:
        port = f"port{self.hosts.index(host) + 1}"
        network = f"--net=/proc/{self.switch_pid}/ns/net"
        subprocess.run(["nsenter", network, "ip", "link", "set", port, state], check=True)


def host_environment(additions: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of a command on a host: this one, in no run, with this Python."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_MEMBERSHIP)}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**_DEFAULTS, **kept, "PATH": path, **additions}


def _problem() -> str | None:
    if os.geteuid() != 0:
        return "virtual hosts need root"
    missing = [name for name in ("ip", "nsenter", "unshare") if shutil.which(name) is None]
    if missing:
        return f"virtual hosts need {' and '.join(missing)} (Debian: iproute2, util-linux)"
    tried = subprocess.run(
        ["unshare", "--net", "--uts", "--mount", "true"], capture_output=True, text=True
    )
    return f"virtual hosts need namespaces: {tried.stderr.strip()}" if tried.returncode else None


@pytest.fixture(scope="session")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VirtualNetwork]:
    """Three hosts tfd1, tfd2 and tfd3 in a network that nothing else is in."""
    problem = _problem()
    if problem is not None:
        pytest.skip(problem)
    folder = tmp_path_factory.mktemp("hosts")
    keeper = subprocess.Popen(
        [sys.executable, str(_FOLDER / "keep_hosts.py"), str(folder), *_NAMES],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C is for pytest; the keeper ends a moment later
    )
    assert keeper.stdin is not None
    assert keeper.stdout is not None
    try:
        word, _, pids_text = keeper.stdout.readline().partition(" ")
        assert word == "ready", "the hosts could not be made, see above"
        pids = json.loads(pids_text)
        hosts = tuple(
            VirtualHost(name=name, address=f"10.77.0.{number}", pid=pids[name])
            for number, name in enumerate(_NAMES, start=1)
        )
        yield VirtualNetwork(hosts=hosts, switch_pid=pids["switch"], folder=folder)
    finally:
        keeper.stdin.close()
        keeper.wait()
        keeper.stdout.close()


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
    agent = network.folder / "fake-agent"
    cases = "\n".join(
        f"    {host.name}|{host.address}) pid={host.pid} ;;" for host in network.hosts
    )
    agent.write_text(
        "#!/bin/sh\n# Called as: fake-agent [-x ...] HOST COMMAND...\n"
        'while [ "${1#-}" != "$1" ]; do shift; done\n'
        f'case "$1" in\n{cases}\n    *) echo "no host $1" >&2; exit 255 ;;\nesac\n'
        'shift\nexec nsenter --target="$pid" --net --uts --mount -- sh -c "$*"\n'
    )
    agent.chmod(0o755)
    return str(agent)


@pytest.fixture(scope="session")
def ssh_agent(network: VirtualNetwork) -> Iterator[str]:
    """The command of a real ssh client that reaches the hosts' real sshd with a key."""
    sshd = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    if sshd is None or shutil.which("ssh") is None:
        pytest.skip("needs sshd and ssh (Debian: openssh-server)")
    folder = network.folder / "ssh"
    folder.mkdir(mode=0o700)
    for key in ("host_key", "user_key"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key], check=True
        )
    (folder / "server").write_text(
        f"HostKey {folder}/host_key\nAuthorizedKeysFile {folder}/user_key.pub\n"
        "StrictModes no\nUsePAM no\nPasswordAuthentication no\nPidFile none\n"
        "PermitRootLogin prohibit-password\n"
    )
    known = "".join(
        f"{host.name} {(folder / 'host_key.pub').read_text()}" for host in network.hosts
    )
    (folder / "known_hosts").write_text(known)
    (folder / "client").write_text(
        f"IdentityFile {folder}/user_key\nIdentitiesOnly yes\nUserKnownHostsFile "
        f"{folder}/known_hosts\nGlobalKnownHostsFile /dev/null\nStrictHostKeyChecking yes\n"
        "BatchMode yes\nConnectTimeout 5\n"
    )
    Path("/run/sshd").mkdir(exist_ok=True)  # the folder of sshd's unprivileged part
    server = [sshd, "-D", "-E", str(folder / "log"), "-f", str(folder / "server")]
    servers = [host.popen(server) for host in network.hosts]
    client = f"ssh -F {folder}/client"
    try:
        for host in network.hosts:
            reached = wait_until(
                lambda host=host: host.run([*client.split(), host.name, "true"]).returncode == 0,
                _START_LIMIT_S,
            )
            assert reached, f"no sshd on {host.name}: {(folder / 'log').read_text()}"
        yield client
    finally:
        for process in servers:
            process.kill()
            process.wait()


@pytest.fixture(scope="session")
def train_linear() -> str:
    """The path of a short training program."""
    return str(_FOLDER / "train_linear.py")


@pytest.fixture(scope="session")
def endless() -> tuple[str, ...]:
    """Options of the program that trains until a host is cut off, noticed after 5 s and not 20."""
    return ("--num-steps=1000000", "--seconds-per-step=0.05", "--unreachable-after-s=5")


@pytest.fixture(scope="session")
def check_weights(
    train_linear: str, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Path, int], None]:
    """Checks that the workers' weights in a folder equal those of one process."""
    from argparse import Namespace

    folder = tmp_path_factory.mktemp("one-process")
    arguments = Namespace(
        num_steps=20, seconds_per_step=0.0, model_dir=str(folder), out=str(folder)
    )
    runpy.run_path(train_linear)["train"](arguments, None)
    expected = json.loads((folder / "0").read_text())

    def check(out: Path, num_workers: int) -> None:
        found = [json.loads((out / str(worker)).read_text()) for worker in range(num_workers)]
        assert found == [found[0]] * num_workers
        assert found[0] == pytest.approx(expected, rel=0, abs=1e-6)

    return check
