"""Two hosts of their own on this machine, with a link between them whose rate is set."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from virtual_hosts import HostsError, VirtualHost, virtual_network

NAMES = ("slow1", "slow2")
# While a link is idle its bucket fills, and a step would send that much at once: 2% of the CNN's
# gradients. Packets are smaller than TCP's usual 64 KiB, so that so small a bucket holds two.
BURST = "32kb"
PACKET_BYTES = 16384
# So long a queue, full at the rate, that TCP is slowed down by waiting and not by losses.
QUEUE = "100ms"


@dataclass(frozen=True, kw_only=True)
class Link:
    """Two hosts, each with one end of the cable.

    Attributes:
      hosts: The two.
      agent: A program that mpirun takes for its remote shell to reach them.
      folder: For temporary files; goes with the link.
    """

    hosts: tuple[VirtualHost, ...]
    agent: str
    folder: Path

    def shape(self, rate_bits: float) -> None:
        """Gives the link a rate in bits a second, in each direction by itself.

        Raises:
          HostsError: If this kernel cannot.
        """
        queue = f"dev eth0 root tbf rate {rate_bits:.0f}bit burst {BURST} latency {QUEUE}"
        for host, command in itertools.product(
            self.hosts,
            (
                f"ip link set dev eth0 gso_max_size {PACKET_BYTES}",
                f"tc qdisc replace {queue}",
            ),
        ):
            done = host.run(command.split())
            if done.returncode != 0:
                why = done.stderr.strip().rpartition("\n")[2].rstrip(".") or "it printed nothing"
                raise HostsError(
                    f"a link cannot be shaped here: {why}. Use a kernel with "
                    "the token bucket filter (CONFIG_NET_SCH_TBF, module sch_tbf)."
                )


@contextmanager
def linked_hosts() -> Iterator[Link]:
    """Makes two hosts and the link between them, and removes them with all that runs there.

    Raises:
      HostsError: If they cannot be made.
    """
    with virtual_network(NAMES) as network:
        yield Link(hosts=network.hosts, agent=network.write_agent(), folder=network.folder)
