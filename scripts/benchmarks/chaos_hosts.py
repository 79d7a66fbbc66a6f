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
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from chaos import (
    END_LIMIT_S,
    LAST_STEP,
    POLL_S,
    TRAINING,
    largest_difference,
    name_last_step,
    run_command,
    saved_step,
    values_of,
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


def read_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--losses", type=int, default=6)
    parser.add_argument("--engine", choices=("grpc", "horovod"), default="grpc")
    parser.add_argument("--hosts", type=int, default=3)
    parser.add_argument("--ways", nargs="*", choices=WAYS, default=list(WAYS))
    parser.add_argument("--round-steps", type=int, default=300, help="steps of a call of train")
    parser.add_argument("--save-steps", type=int, default=100)
    parser.add_argument("--snapshot-steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit-s", type=float, default=300.0, help="no loss after this time")
    parser.add_argument("--keep", type=Path, help="a folder for the launcher's output")
    return parser.parse_args()


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


class HostChaos:
    """One disturbed run; everything goes into the folder."""

    def __init__(self, arguments: argparse.Namespace, hosts: Hosts, folder: Path) -> None:
        self._arguments = arguments
        self._hosts = hosts
        self._folder = folder
        self._random = random.Random(arguments.seed)
        self._started_s = time.monotonic()
        self._popen = start_run(arguments, hosts, folder)
        self.losses: list[str] = []
        self.last_step = 0
        self.problem = ""

    def run(self) -> int:
        """Takes hosts and gives them back, then waits; returns the launcher's exit code."""
        try:
            self._wait_until_it_trains(self._has_all_workers)
            for number in range(self._arguments.losses):
                if time.monotonic() - self._started_s > self._arguments.limit_s or self.problem:
                    break
                self._lose_and_regain(number)
            self.last_step = name_last_step(self._folder, self._arguments.round_steps)
            with suppress(subprocess.TimeoutExpired):
                self._popen.wait(5.0 if self.problem else END_LIMIT_S)
        finally:
            self._popen.terminate()
            self._popen.wait()
        return int(self._popen.returncode)

    def _lose_and_regain(self, number: int) -> None:
        ways = self._arguments.ways
        way, host = ways[number % len(ways)], self._random.choice(self._hosts.all)
        in_start = self._random.random() < 0.3
        if not in_start:
            self._sleep(self._random.uniform(0.0, 3.0))
        self._take(host, way)
        away = [host]
        down_s = WAYS[way]
        if down_s is None:
            self._wait("run without it", NOTICED_LIMIT_S, lambda: self._size() < self._full)
            if self._random.random() < 0.7:
                self._wait_until_it_trains(lambda: True)
            self._sleep(self._random.uniform(0.0, 3.0))
            if number % 3 == 1:
                away.append(self._random.choice([h for h in self._hosts.all if h not in away]))
                self._take(away[1], "link")
                size = self._full - 1
                self._wait("run without both", NOTICED_LIMIT_S, lambda: self._size() < size)
                self._wait_until_it_trains(lambda: True)
        else:
            self._sleep(down_s)
        for one in away:
            self._hosts.give_back(one)
        self._say(f"{' and '.join(one.name for one in away)} back")
        self._sleep(1.0)
        if in_start:
            self._wait("start on all hosts", FULL_LIMIT_S, self._has_all_workers)
        else:
            self._wait_until_it_trains(self._has_all_workers)

    def _take(self, host: VirtualHost, way: str) -> None:
        index = self._hosts.all.index(host)
        before = saved_step(self._folder / "model")
        self._hosts.take(host, way)
        self.losses.append(way)
        self._say(f"loss {len(self.losses)}: {host.name} (worker {index}), {way}; saved: {before}")

    @property
    def _full(self) -> int:
        return len(self._hosts.all)

    def _size(self) -> int:
        """Returns with how many instances the run goes on, as the launcher said last."""
        sizes = re.findall(r"going on with (\d+) of|start again as (\d+) inst", self._output())
        return int("".join(sizes[-1])) if sizes else self._full

    def _has_all_workers(self) -> bool:
        return self._size() == self._full and all(map(self._hosts.workers, self._hosts.all))

    def _wait_until_it_trains(self, is_ready: Callable[[], bool]) -> None:
        """Waits until this is so, and worker 0 makes steps from now on."""
        log = self._folder / "logs" / "worker-0.log"
        seen = log.stat().st_size if log.exists() else 0

        def train() -> bool:
            if not is_ready() or not log.exists():
                return False
            with log.open("rb") as file:
                file.seek(seen)
                return b"loss = " in file.read()

        self._wait("step", FULL_LIMIT_S, train)

    def _wait(self, what: str, limit_s: float, is_there: Callable[[], bool]) -> None:
        give_up_s = time.monotonic() + limit_s
        while not self.problem and not is_there():
            if self._popen.poll() is not None:
                self.problem = f"the run ended before there was a {what}"
            elif time.monotonic() > give_up_s:
                self.problem = f"no {what} within {limit_s:g} s"
            time.sleep(POLL_S)
        if self.problem:
            self._say(self.problem)

    def _sleep(self, seconds: float) -> None:
        with suppress(subprocess.TimeoutExpired):
            self._popen.wait(seconds)

    def _output(self) -> str:
        return (self._folder / "output").read_text(errors="replace")

    def _say(self, text: str) -> None:
        line = f"{time.monotonic() - self._started_s:5.0f} s: {text}"
        print(line, flush=True)
        with (self._folder / "output").open("a") as output:
            output.write(f"-- {line}\n")


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
    arguments = read_arguments()
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
    print(json.dumps(findings, indent=2))
    is_sound = (
        findings["exit_codes"] == [0, 0]
        and findings["last_step"] == findings["asked_step"]
        and findings["largest_difference"] <= TOLERANCE
        and findings["largest_loss_difference"] <= TOLERANCE
        and not findings["problem"]
        and not findings["left"]
    )
    print("sound" if is_sound else "NOT SOUND")
    return 0 if is_sound else 1


def _compare(
    arguments: argparse.Namespace, hosts: Hosts, disturbed: Path, quiet: Path
) -> dict[str, Any]:
    chaos = HostChaos(arguments, hosts, disturbed)
    started_s = time.monotonic()
    codes = [chaos.run()]
    disturbed_s = time.monotonic() - started_s
    left = _what_is_left(hosts)
    (quiet / LAST_STEP).write_text(str(chaos.last_step))
    codes.append(start_run(arguments, hosts, quiet).wait(END_LIMIT_S))
    values = values_of(disturbed / "model")
    compared, loss_difference = largest_loss_difference(disturbed, quiet)
    said = re.findall("tfdist: (interrupted .*)", (disturbed / "output").read_text())
    return {
        "engine": arguments.engine,
        "hosts": len(hosts.all),
        "losses": dict(Counter(chaos.losses)),
        "problem": chaos.problem,
        "exit_codes": codes,
        "asked_step": chaos.last_step,
        "last_step": int(values["global_step"]),
        "largest_difference": largest_difference(values, values_of(quiet / "model")),
        "losses_compared": compared,
        "largest_loss_difference": loss_difference,
        "left": left,
        "left_by_the_undisturbed": _what_is_left(hosts),
        "seconds": round(disturbed_s, 1),
        "said": said,
    }


if __name__ == "__main__":
    sys.exit(main())
