"""Takes hosts away from one training, and gives them back; the weights must not show it.

    python scripts/benchmarks/chaos_hosts.py [--losses 6] [--engine grpc] [--hosts 3] [--seed 1]

The hosts are network namespaces of this machine, each with an sshd; the launcher runs on one more,
`head`, which stays. Needs root. The run may shrink to one instance, and its global batch stays. A
host goes in one of these ways, in the middle of the training or while it starts:

    link          its link is down until the run goes on without it
    link for 5 s  the training waits
    link for 15 s ssh and mpirun give up meanwhile
    power         its processes, its memory and its temporary files are gone, and the link
    processes     its processes are gone, and ssh works: all start again
    sshd          its sshd is gone, then its worker

About every third host that stays away is followed by another one before it is back. Then the
training makes as many steps on all hosts without harm. The exit code is 0 if the disturbed run
ended at that step, if all values of its last checkpoint and all losses that it logged are those of
the undisturbed run to 6 decimals, and if nothing is left on any host: no process, nothing in
/dev/shm, and no temporary file but those of processes that were killed all at once. Prints a line
an event, and the findings as JSON at the end.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from chaos import (
    LAST_STEP,
    POLL_S,
    TRAINING,
    DisturbedRun,
    end_of,
    make_parser,
    report,
    run_command,
    saved_step,
)
from virtual_hosts import (
    SUBNET,
    SshServers,
    VirtualHost,
    VirtualNetwork,
    find_sshd,
    virtual_network,
    why_impossible,
)

GLOBAL_BATCH = 48  # divides by 1, 2 and 3 workers
# The ways in which a host goes, and how long its link is down: None until the run goes on.
WAYS: dict[str, float | None] = {
    "link": None,
    "power": None,
    "sshd": None,
    "processes": 0.0,
    "link for 5 s": 5.0,
    "link for 15 s": 15.0,
}
NOTICED_LIMIT_S = 120.0
FULL_LIMIT_S = 180.0
CLEAN_LIMIT_S = 40.0
TOLERANCE = 1e-6


class Hosts:
    """The hosts of a run, beside `head`, and their servers."""

    def __init__(self, network: VirtualNetwork) -> None:
        self.network = network
        self.head, *self.all = network.hosts
        self._ownerless: set[Path] = set()  # temporary files of processes that were killed at once
        variables = {host.name: {"TMPDIR": str(self.temporary(host))} for host in network.hosts}
        self.servers = SshServers(network, variables)
        for host in network.hosts:
            self.temporary(host).mkdir()
            self.servers.start(host)

    def temporary(self, host: VirtualHost) -> Path:
        """Returns the folder of a host's temporary files."""
        return self.network.folder / host.name

    def memory(self, host: VirtualHost) -> Path:
        """Returns the folder of a host's shared memory."""
        return Path(f"/proc/{host.pid}/root/dev/shm")

    def workers(self, host: VirtualHost) -> list[int]:
        """Returns the processes on a host that train."""
        return [pid for pid, text in host.processes().items() if f" {TRAINING}" in text]

    def take(self, host: VirtualHost, way: str) -> None:
        """Takes a host away."""
        if way == "power" or way.startswith("link"):
            self.network.cut(host)
        if way in ("power", "sshd"):
            self.servers.stop(host)
        if way == "sshd":
            _kill(self.workers(host)[:1])
        if way in ("power", "processes"):
            # The kernel ends them all at once; so nothing may clean up between two of them.
            pids = [pid for pid, text in host.processes().items() if "sshd -D" not in text]
            self._ownerless.update(self.temporary(host).rglob("*"))
            for number in (signal.SIGSTOP, signal.SIGKILL):
                _kill(pids, number)
        if way == "power":
            (self.network.folder / f"boot-{host.name}").write_text(f"{uuid.uuid4()}\n")
            for folder in (self.memory(host), self.temporary(host)):
                for path in folder.iterdir():
                    shutil.rmtree(path, ignore_errors=True)
                    path.unlink(missing_ok=True)

    def give_back(self, host: VirtualHost) -> None:
        """Undoes what `take` has done."""
        self.network.reconnect(host)
        self.servers.start(host)

    def left(self) -> list[str]:
        """Returns what a run has left on the hosts."""
        found = []
        for host in self.network.hosts:
            processes = host.processes().values()
            found += [f"{host.name}: {text}" for text in processes if "sshd -D" not in text]
            for folder in (self.memory(host), self.temporary(host)):
                paths = set(folder.rglob("*")) - self._ownerless
                found += [f"{host.name}: {path}" for path in paths]
        return found


class HostChaos(DisturbedRun):
    """A run whose hosts are taken away and given back."""

    def __init__(self, arguments: argparse.Namespace, hosts: Hosts, folder: Path) -> None:
        super().__init__(arguments, folder, start_run(arguments, hosts, folder))
        self._hosts = hosts
        self.losses: list[str] = []

    def disturb(self) -> None:
        self._wait_until_it_trains(on_all=True)
        for number in range(self.arguments.losses):
            if self.may_go_on:
                self._lose_and_regain(number)

    def _lose_and_regain(self, number: int) -> None:
        ways = self.arguments.ways
        way, host = ways[number % len(ways)], self.random.choice(self._hosts.all)
        in_start = self.random.random() < 0.3
        if not in_start:
            self.sleep(self.random.uniform(0.0, 3.0))
        self._take(host, way)
        away = [host]
        down_s = WAYS[way]
        if down_s is None:
            self.wait("run without it", NOTICED_LIMIT_S, lambda: self._size() < self._full)
            if self.random.random() < 0.7:
                self._wait_until_it_trains()
            self.sleep(self.random.uniform(0.0, 3.0))
            if number % 3 == 1:
                away.append(self.random.choice([h for h in self._hosts.all if h not in away]))
                self._take(away[1], "link")
                size = self._full - 1
                self.wait("run without both", NOTICED_LIMIT_S, lambda: self._size() < size)
                self._wait_until_it_trains()
        else:
            self.sleep(down_s)
        for one in away:
            self._hosts.give_back(one)
        self.say(f"{' and '.join(one.name for one in away)} back")
        self.sleep(1.0)
        if in_start:
            self.wait("start on all hosts", FULL_LIMIT_S, self._has_all_workers)
        else:
            self._wait_until_it_trains(on_all=True)

    def _take(self, host: VirtualHost, way: str) -> None:
        index = self._hosts.all.index(host)
        before = saved_step(self.folder / "model")
        self._hosts.take(host, way)
        self.losses.append(way)
        self.say(f"loss {len(self.losses)}: {host.name} (worker {index}), {way}; saved: {before}")

    @property
    def _full(self) -> int:
        return len(self._hosts.all)

    def _size(self) -> int:
        """Returns with how many instances the run goes on, as the launcher said last."""
        output = (self.folder / "output").read_text(errors="replace")
        sizes = re.findall(r"going on with (\d+) of|start again as (\d+) inst", output)
        return int("".join(sizes[-1])) if sizes else self._full

    def _has_all_workers(self) -> bool:
        return self._size() == self._full and all(map(self._hosts.workers, self._hosts.all))

    def _wait_until_it_trains(self, *, on_all: bool = False) -> None:
        """Waits until worker 0 makes steps from now on, and all hosts have a worker if `on_all`."""
        self.wait_for_line(
            "step", "loss = ", FULL_LIMIT_S, lambda: not on_all or self._has_all_workers()
        )


def start_run(arguments: argparse.Namespace, hosts: Hosts, folder: Path) -> subprocess.Popen[str]:
    """Starts the training on all hosts; its output, and its last step, are in the folder."""
    command = run_command(
        arguments,
        folder,
        *("--num-instances", str(len(hosts.all)), "--max-restarts", "1000"),
        *("--host", ",".join(host.name for host in hosts.all), "--host-subnet", SUBNET),
        *("--min-instances", "1", "--rejoin-interval", "2"),
        *("--snapshot-steps", str(arguments.snapshot_steps)),
        program=("--global-batch", str(GLOBAL_BATCH)),
    )
    environ = {
        "OMPI_MCA_plm_rsh_agent": hosts.servers.client,
        "TMPDIR": str(hosts.temporary(hosts.head)),
    }
    with (folder / "output").open("ab") as output:
        return hosts.head.popen(
            command, cwd=folder, env=environ, stdout=output, stderr=subprocess.STDOUT
        )


def losses_in(folder: Path) -> list[tuple[int, float]]:
    """Returns the steps and losses that worker 0 has logged."""
    text = (folder / "logs" / "worker-0.log").read_text(errors="replace")
    return [
        (int(step), float(loss)) for loss, step in re.findall(r"loss = (\S+), step = (\d+)", text)
    ]


def largest_loss_difference(disturbed: Path, quiet: Path) -> tuple[int, float]:
    """Returns how many losses were compared, and by how much two of the same step differ."""
    expected = dict(losses_in(quiet))
    pairs = [(loss, expected[step]) for step, loss in losses_in(disturbed) if step in expected]
    return len(pairs), max((abs(loss - other) for loss, other in pairs), default=float("inf"))


def _kill(pids: list[int], number: signal.Signals = signal.SIGKILL) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _what_is_left(hosts: Hosts) -> list[str]:
    give_up_s = time.monotonic() + CLEAN_LIMIT_S
    while (left := hosts.left()) and time.monotonic() < give_up_s:
        time.sleep(POLL_S)
    return left


def main() -> int:
    """Runs twice, compares, and says what was found."""
    parser = make_parser(__doc__, save_steps=100, limit_s=300.0)
    parser.add_argument("--losses", type=int, default=6)
    parser.add_argument("--hosts", type=int, default=3)
    parser.add_argument("--ways", nargs="*", choices=WAYS, default=list(WAYS))
    parser.add_argument("--snapshot-steps", type=int, default=20)
    parser.add_argument("--keep", type=Path, help="a folder for the launcher's output")
    arguments = parser.parse_args()
    problem = why_impossible() or (None if find_sshd() else "sshd or ssh not found.")
    if problem is not None:
        sys.exit(f"chaos_hosts.py: {problem}")
    names = ["head", *(f"host{number}" for number in range(1, arguments.hosts + 1))]
    with (
        tempfile.TemporaryDirectory(prefix="tfd-chaos-") as scratch,
        virtual_network(names) as network,
    ):
        disturbed, quiet = Path(scratch, "disturbed"), Path(scratch, "quiet")
        disturbed.mkdir()
        quiet.mkdir()
        hosts = Hosts(network)
        try:
            findings = _compare(arguments, hosts, disturbed, quiet)
        finally:
            if arguments.keep is not None:
                shutil.copytree(scratch, arguments.keep, dirs_exist_ok=True)
            for host in network.hosts:
                hosts.servers.stop(host)
    is_sound = findings["largest_loss_difference"] <= TOLERANCE and not findings["left"]
    return report(findings, tolerance=TOLERANCE, is_sound=is_sound)


def _compare(
    arguments: argparse.Namespace, hosts: Hosts, disturbed: Path, quiet: Path
) -> dict[str, Any]:
    chaos = HostChaos(arguments, hosts, disturbed)
    code = chaos.run()
    left = _what_is_left(hosts)
    (quiet / LAST_STEP).write_text(str(chaos.last_step))
    quiet_code = end_of(start_run(arguments, hosts, quiet))
    compared, loss_difference = largest_loss_difference(disturbed, quiet)
    return {
        **chaos.findings([code, quiet_code], quiet),
        "hosts": len(hosts.all),
        "losses": dict(Counter(chaos.losses)),
        "losses_compared": compared,
        "largest_loss_difference": loss_difference,
        "left": left,
        "left_by_the_undisturbed": _what_is_left(hosts),
    }


if __name__ == "__main__":
    sys.exit(main())
