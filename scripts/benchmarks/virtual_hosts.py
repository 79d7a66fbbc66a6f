"""Virtual hosts on this machine: their networks, their hostnames, and remote shells to them.

They are namespaces. Root makes them, and a process that outlives this one by a moment removes them,
however this one ends.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfdist.cluster.instance_variables import OF_ONE_RUN

KEEPER = Path(__file__).with_name("keep_hosts.py")
SUBNET = "10.77.0.0/24"  # Nothing else is in it: the hosts' network is theirs alone.
_REPOSITORY = Path(__file__).parents[2]
# Variables that would make a process on a host a part of the run around this process.
_MEMBERSHIP = (*OF_ONE_RUN, "TFDIST_", "SLURM_", "SBATCH_", "SRUN_", "OMPI_", "HOROVOD_")
_DEFAULTS = {
    "OMP_NUM_THREADS": "1",  # the hosts share this machine's cores
    "PYTHONUNBUFFERED": "1",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "TF_USE_LEGACY_KERAS": "1",
}


class HostsError(RuntimeError):
    """The hosts cannot be made here; the message is one line with the fix."""


@dataclass(frozen=True, kw_only=True)
class VirtualHost:
    """A host: commands run there with its network, hostname, /etc/hosts and shared memory."""

    name: str
    address: str
    pid: int  # its namespaces are the host's

    def command(self, command: Sequence[object], cwd: Path | str | None = None) -> list[str]:
        """Returns the command that becomes this command on the host; its process id stays."""
        # Not `ip netns exec`: that mounts another /sys, without the cgroups that slurmd needs.
        enter = ("nsenter", f"--target={self.pid}", "--net", "--uts", "--mount", "--")
        there = () if cwd is None else ("env", f"--chdir={cwd}")
        return [*enter, *there, *map(str, command)]

    def popen(
        self,
        command: Sequence[object],
        *,
        cwd: Path | str = _REPOSITORY,
        env: Mapping[str, str] | None = None,
        **options: Any,
    ) -> subprocess.Popen[str]:
        """Starts a command on the host."""
        options = {"text": True, "stdin": subprocess.DEVNULL, **options}
        environ = host_environment(env or {})
        return subprocess.Popen(self.command(command, cwd), env=environ, **options)

    def run(
        self,
        command: Sequence[object],
        *,
        cwd: Path | str = _REPOSITORY,
        env: Mapping[str, str] | None = None,
        timeout_s: float = 60.0,
        **options: Any,
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command on the host to its end and returns what it wrote."""
        options = {"text": True, "stdin": subprocess.DEVNULL, "capture_output": True, **options}
        environ = host_environment(env or {})
        words = self.command(command, cwd)
        return subprocess.run(words, env=environ, timeout=timeout_s, check=False, **options)

    def processes(self) -> dict[int, str]:
        """Returns the host's processes: process ids and command lines."""
        network = os.stat(f"/proc/{self.pid}/ns/net").st_ino
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == self.pid:
                continue
            try:
                if os.stat(entry / "ns" / "net").st_ino == network:
                    words = (entry / "cmdline").read_text().split("\0")
                    if (entry / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
                        found[int(entry.name)] = " ".join(words)
            except OSError:
                continue  # it has just ended
        return found


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

    def write_agent(self) -> str:
        """Writes a program in place of mpirun's remote shell that needs no server."""
        agent = self.folder / "agent"
        cases = "\n".join(f"    {one.name}|{one.address}) pid={one.pid} ;;" for one in self.hosts)
        agent.write_text(
            "#!/bin/sh\n# Called as: agent [-x ...] HOST COMMAND...\n"
            'while [ "${1#-}" != "$1" ]; do shift; done\n'
            f'case "$1" in\n{cases}\n    *) echo "no host $1" >&2; exit 255 ;;\nesac\n'
            'shift\nexec nsenter --target="$pid" --net --uts --mount -- sh -c "$*"\n'
        )
        agent.chmod(0o755)
        return str(agent)


class SshServers:
    """A real sshd on each host, which lets this user in with a key.

    `variables` are those of every session on a host, by its name. `client` is the command of the
    ssh client that reaches the hosts.
    """

    def __init__(
        self, network: VirtualNetwork, variables: Mapping[str, Mapping[str, str]] | None = None
    ) -> None:
        sshd = find_sshd()
        assert sshd is not None  # Callers look before.
        self._sshd = sshd
        self._folder = folder = network.folder / "ssh"
        self._servers: dict[str, subprocess.Popen[str]] = {}
        self.client = f"ssh -F {folder}/client"
        folder.mkdir(mode=0o700)
        for key in ("host_key", "user_key"):
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key], check=True
            )
        for host in network.hosts:
            own = (variables or {}).get(host.name, {})
            (folder / f"server-{host.name}").write_text(
                f"HostKey {folder}/host_key\nAuthorizedKeysFile {folder}/user_key.pub\n"
                "StrictModes no\nUsePAM no\nPasswordAuthentication no\nPidFile none\n"
                "PermitRootLogin prohibit-password\n"
                + "".join(f"SetEnv {name}={value}\n" for name, value in own.items())
            )
        key = (folder / "host_key.pub").read_text()
        (folder / "known_hosts").write_text("".join(f"{one.name} {key}" for one in network.hosts))
        (folder / "client").write_text(
            f"IdentityFile {folder}/user_key\nIdentitiesOnly yes\nUserKnownHostsFile "
            f"{folder}/known_hosts\nGlobalKnownHostsFile /dev/null\nStrictHostKeyChecking yes\n"
            "BatchMode yes\nConnectTimeout 5\n"
        )
        Path("/run/sshd").mkdir(exist_ok=True)  # the folder of sshd's unprivileged part

    def start(self, host: VirtualHost) -> None:
        """Starts a host's server, if it does not run."""
        server = self._servers.get(host.name)
        if server is None or server.poll() is not None:
            files = ("-E", self._folder / "log", "-f", self._folder / f"server-{host.name}")
            self._servers[host.name] = host.popen([self._sshd, "-D", *files])

    def stop(self, host: VirtualHost) -> None:
        """Ends a host's server; sessions go on."""
        if (server := self._servers.pop(host.name, None)) is not None:
            server.kill()
            server.wait()

    def log(self) -> str:
        """Returns what the servers have written."""
        return (self._folder / "log").read_text()


def find_sshd() -> str | None:
    """Returns the path of sshd; None if it or ssh is missing."""
    sshd = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    return None if shutil.which("ssh") is None else sshd


def host_environment(additions: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of a command on a host: this one, in no run, with this Python."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_MEMBERSHIP)}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**_DEFAULTS, **kept, "PATH": path, **additions}


def why_impossible(*programs: str) -> str | None:
    """Says in one line why there can be no hosts here, with the fix; None if there can.

    `programs` are those of iproute2 and util-linux that are needed beside the usual ones.
    """
    if os.geteuid() != 0:
        return "network namespaces need root. Run this as root."
    needed = ("ip", *programs, "nsenter", "unshare")
    missing = [name for name in needed if shutil.which(name) is None]
    if missing:
        return f"{' and '.join(missing)} not found. Install iproute2 and util-linux."
    command = ["unshare", "--net", "--uts", "--mount", "true"]
    tried = subprocess.run(command, capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        why = _last_line(tried.stderr)
        return f"namespaces are forbidden here: {why} Allow them (CAP_SYS_ADMIN)."
    return None


@contextmanager
def virtual_network(names: Sequence[str]) -> Iterator[VirtualNetwork]:
    """Makes hosts and the switch between them, and removes them with all that runs there.

    Raises:
      HostsError: If they cannot be made.
    """
    with tempfile.TemporaryDirectory(prefix="tfd-hosts-") as folder:
        keeper = subprocess.Popen(
            [sys.executable, str(KEEPER), folder, *names],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for us; it ends a moment later
        )
        assert keeper.stdin is not None
        assert keeper.stdout is not None
        assert keeper.stderr is not None
        try:
            word, _, pids_text = keeper.stdout.readline().partition(" ")
            if word != "ready":
                raise HostsError(f"the hosts could not be made: {_last_line(keeper.stderr.read())}")
            pids = json.loads(pids_text)
            hosts = tuple(
                VirtualHost(name=name, address=f"10.77.0.{number}", pid=pids[name])
                for number, name in enumerate(names, start=1)
            )
            yield VirtualNetwork(hosts=hosts, switch_pid=pids["switch"], folder=Path(folder))
        finally:
            keeper.stdin.close()  # Which it waits for.
            keeper.wait()
            keeper.stdout.close()
            keeper.stderr.close()


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"{lines[-1].rstrip('.')}." if lines else "it printed nothing."
