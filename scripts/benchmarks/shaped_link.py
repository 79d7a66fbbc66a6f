"""Two hosts of their own on this machine, with a link between them whose rate is set.

They are namespaces. Root makes them, and a process that outlives this one by a moment removes them,
however this one ends.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

KEEPER = Path(__file__).parents[2] / "tests" / "virtual_hosts" / "keep_hosts.py"
NAMES = ("slow1", "slow2")
SUBNET = "10.77.0.0/24"  # Nothing else is in it: the hosts' network is theirs alone.
# While a link is idle its bucket fills, and a step would send that much at once: 2% of the CNN's
# gradients. Packets are smaller than TCP's usual 64 KiB, so that so small a bucket holds two.
BURST = "32kb"
PACKET_BYTES = 16384
# So long a queue, full at the rate, that TCP is slowed down by waiting and not by losses.
QUEUE = "100ms"


class LinkError(RuntimeError):
    """A link cannot be made or shaped here; the message is one line with the fix."""


@dataclass(frozen=True, kw_only=True)
class Host:
    """A network, a hostname and shared memory of its own; files are those of this machine."""

    name: str
    address: str
    pid: int  # its namespaces are the host's

    def command(self, command: Sequence[str]) -> list[str]:
        """Returns the command that becomes this command on the host; its process id stays."""
        return ["nsenter", f"--target={self.pid}", "--net", "--uts", "--mount", "--", *command]


@dataclass(frozen=True, kw_only=True)
class Link:
    """Two hosts, each with one end of the cable.

    Attributes:
      hosts: The two.
      agent: A program that mpirun takes for its remote shell to reach them.
      folder: For temporary files; goes with the link.
    """

    hosts: tuple[Host, Host]
    agent: str
    folder: Path

    def shape(self, rate_bits: float) -> None:
        """Gives the link a rate in bits a second, in each direction by itself.

        Raises:
          LinkError: If this kernel cannot.
        """
        queue = f"dev eth0 root tbf rate {rate_bits:.0f}bit burst {BURST} latency {QUEUE}"
        for host, command in itertools.product(
            self.hosts,
            (
                f"ip link set dev eth0 gso_max_size {PACKET_BYTES}",
                f"tc qdisc replace {queue}",
            ),
        ):
            done = subprocess.run(
                host.command(command.split()), capture_output=True, text=True, check=False
            )
            if done.returncode != 0:
                raise LinkError(
                    f"a link cannot be shaped here: {_last_line(done.stderr)} Use a kernel with "
                    "the token bucket filter (CONFIG_NET_SCH_TBF, module sch_tbf)."
                )


def why_impossible() -> str | None:
    """Says in one line why there can be no link here, with the fix; None if there can."""
    if os.geteuid() != 0:
        return "network namespaces need root. Run this as root."
    missing = [name for name in ("ip", "tc", "nsenter", "unshare") if shutil.which(name) is None]
    if missing:
        return f"{' and '.join(missing)} not found. Install iproute2 and util-linux."
    command = ["unshare", "--net", "--uts", "--mount", "true"]
    tried = subprocess.run(command, capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        why = _last_line(tried.stderr)
        return f"namespaces are forbidden here: {why} Allow them (CAP_SYS_ADMIN)."
    return None


@contextmanager
def linked_hosts() -> Iterator[Link]:
    """Makes two hosts and the link between them, and removes them with all that runs there.

    Raises:
      LinkError: If they cannot be made.
    """
    with tempfile.TemporaryDirectory(prefix="tfdist-link-") as name:
        folder = Path(name)
        keeper = subprocess.Popen(
            [sys.executable, str(KEEPER), name, *NAMES],
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
                raise LinkError(f"the hosts could not be made: {_last_line(keeper.stderr.read())}")
            pids = json.loads(pids_text)
            first, second = (
                Host(name=host, address=f"10.77.0.{number}", pid=pids[host])
                for number, host in enumerate(NAMES, start=1)
            )
            yield Link(hosts=(first, second), agent=_write_agent(folder, pids), folder=folder)
        finally:
            keeper.stdin.close()  # Which it waits for.
            keeper.wait()
            keeper.stdout.close()
            keeper.stderr.close()


def _write_agent(folder: Path, pids: dict[str, int]) -> str:
    """Writes a program that is called as: agent [-x ...] HOST COMMAND..."""
    agent = folder / "agent"
    cases = "\n".join(f"    {name}) pid={pids[name]} ;;" for name in NAMES)
    agent.write_text(
        '#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do shift; done\n'
        f'case "$1" in\n{cases}\n    *) echo "no host $1" >&2; exit 255 ;;\nesac\n'
        'shift\nexec nsenter --target="$pid" --net --uts --mount -- sh -c "$*"\n'
    )
    agent.chmod(0o755)
    return str(agent)


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"{lines[-1].rstrip('.')}." if lines else "it printed nothing."
