"""Measures what joining and watching cost with many workers, simulated on this machine.

    python scripts/benchmarks/many_workers.py [--workers 64 256 1024] [--step-s 3] [--lost 1]

For each number it forks so many processes without TensorFlow. They join as workers over gRPC do
(`rendezvous.meeting.join`), and stay; with `--step-s` each makes steps of so many seconds. Prints,
as a row of a table: the processor time of worker 0, and the most of any other worker, until all
have joined; then the share of a core and the bytes a second that worker 0 takes to watch; then the
time until all others have named a worker that is killed. The processes share the machine's cores,
so the seconds until all have joined say more about this machine than about the rendezvous.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import mmap
import os
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

from tfdist.cluster.rendezvous.meeting import join
from tfdist.cluster.rendezvous.membership import Membership
from tfdist.cluster.rendezvous.peer_state import CallClock
from tfdist.cluster.rendezvous.sockets import Patience
from tfdist.cluster.tasks import Cluster, Task
from tfdist.process.progress_file import set_phase

LIMIT_S = 300.0
Pipes = tuple[int, int, int]  # to begin, to end, and for what the chief counts
# Values of each worker in memory that all processes share.
JOINED, JOINED_CPU_S, NAMED_AT_S = range(3)
_BYTES_ACKED = 120  # in `struct tcp_info` of <linux/tcp.h>: bytes sent, then bytes received


class Shared:
    """Numbers that each process writes for itself, and all can read."""

    def __init__(self, workers: int) -> None:
        self._map = mmap.mmap(-1, 8 * 3 * workers)

    def get(self, worker: int, value: int) -> float:
        return float(struct.unpack_from("=d", self._map, 8 * (3 * worker + value))[0])

    def set(self, worker: int, value: int, number: float) -> None:
        struct.pack_into("=d", self._map, 8 * (3 * worker + value), number)


@dataclass(frozen=True, kw_only=True)
class Costs:
    """The costs that were measured with one number of workers."""

    workers: int
    join_s: float
    chief_join_cpu_s: float
    other_join_cpu_s: float
    chief_watch_share: float
    chief_bytes_per_s: float
    named_after_s: float

    def __str__(self) -> str:
        return (
            f"| {self.workers:,} | {self.join_s:.1f} s | {self.chief_join_cpu_s:.2f} s "
            f"| {self.other_join_cpu_s:.3f} s | {100 * self.chief_watch_share:.1f} % "
            f"| {self.chief_bytes_per_s / 1000:,.1f} KB | {self.named_after_s:.2f} s |"
        )


def cpu_s(pid: int) -> float:
    """Returns the processor time of any process: `clock_getcpuclockid` of <time.h>."""
    return time.clock_gettime((~pid << 3) | 2)


def cluster_of(workers: int) -> Cluster:
    """Returns a cluster on free ports of this machine."""
    with contextlib.ExitStack() as closing:
        taken = [
            closing.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(workers)
        ]
        ports = [listener.getsockname()[1] for listener in taken]
    return Cluster(jobs={"worker": tuple(f"127.0.0.1:{port}" for port in ports)})


def work(cluster: Cluster, index: int, shared: Shared, pipes: Pipes, step_s: float) -> None:
    """Joins when `begin` is closed, and stays until `end` is; the chief answers its questions."""
    begin, end, counts = pipes
    os.read(begin, 1)
    began_s = time.process_time()
    patience = Patience(LIMIT_S, LIMIT_S, lambda line: None)
    membership = join(cluster, Task(type="worker", index=index), patience)
    shared.set(index, JOINED_CPU_S, time.process_time() - began_s)
    shared.set(index, JOINED, 1.0)
    membership.add_listener(lambda loss: shared.set(index, NAMED_AT_S, time.monotonic()))
    while _has_question(end, membership, step_s):
        totals = [_bytes_of(link.connection) for link in list(membership._links.values())]
        os.write(counts, struct.pack("=q", sum(totals)))
    membership.close()


def _has_question(end: int, membership: Membership, step_s: float) -> bool:
    """Makes steps until a question comes, for what the chief has sent and received, or the end."""
    if step_s:
        set_phase("training")
        calls = membership.calls = membership.calls or CallClock()
        while not select.select([end], (), (), 0.02)[0]:  # Between two steps.
            calls.begin()
            if select.select([end], (), (), step_s)[0]:
                break
            calls.end()
    return bool(os.read(end, 1))


def _bytes_of(connection: socket.socket) -> int:
    facts = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 136)
    return sum(struct.unpack_from("=QQ", facts, _BYTES_ACKED))


@contextlib.contextmanager
def started(
    workers: int, shared: Shared, step_s: float
) -> Iterator[tuple[list[int], int, tuple[int, int]]]:
    """Forks the workers; yields their process ids, the end that starts them, the chief's pipes."""
    cluster = cluster_of(workers)
    (begin, begins), (end, ends), (chief_end, chief_ends) = os.pipe(), os.pipe(), os.pipe()
    counts, writes_counts = os.pipe()
    pids = []
    for index in range(workers):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                for other in (begins, ends, chief_ends, counts):
                    os.close(other)
                own_end = chief_end if index == 0 else end
                work(cluster, index, shared, (begin, own_end, writes_counts), step_s)
                status = 0
            finally:
                sys.stderr.flush()
                os._exit(status)
        pids.append(pid)
    try:
        yield pids, begins, (chief_ends, counts)
    finally:
        for one in (ends, chief_ends):
            os.close(one)
        for pid in pids:
            os.waitpid(pid, 0)
        for one in (begin, end, chief_end, counts, writes_counts):
            os.close(one)


def wait_for(shared: Shared, workers: list[int], value: int, pids: list[int]) -> None:
    give_up_s = time.monotonic() + LIMIT_S
    for worker in workers:
        while not shared.get(worker, value):
            ended, _ = os.waitpid(pids[worker], os.WNOHANG)
            if ended or time.monotonic() > give_up_s:
                raise SystemExit(f"worker {worker} has ended, or takes longer than {LIMIT_S:g} s")
            time.sleep(0.01)


def measure(workers: int, *, watch_s: float, step_s: float, lost: int) -> Costs:
    shared = Shared(workers)
    with started(workers, shared, step_s) as (pids, begins, (ask, counts)):

        def count() -> int:
            os.write(ask, b"?")
            return int(struct.unpack("=q", os.read(counts, 8))[0])

        time.sleep(0.5)
        began_s = time.monotonic()
        os.close(begins)
        wait_for(shared, list(range(workers)), JOINED, pids)
        join_s = time.monotonic() - began_s
        time.sleep(3.0)  # Their first states have been sent.
        before, before_s, cpu_before_s = count(), time.monotonic(), cpu_s(pids[0])
        time.sleep(watch_s)
        sent, cpu_after_s, passed_s = count(), cpu_s(pids[0]), time.monotonic() - before_s
        lost = min(lost, workers - 1)
        os.kill(pids[lost], signal.SIGKILL)
        killed_s = time.monotonic()
        others = [worker for worker in range(workers) if worker != lost]
        wait_for(shared, others, NAMED_AT_S, pids)
        cpus = [shared.get(worker, JOINED_CPU_S) for worker in range(workers)]
        return Costs(
            workers=workers,
            join_s=join_s,
            chief_join_cpu_s=cpus[0],
            other_join_cpu_s=max(cpus[1:]),
            chief_watch_share=(cpu_after_s - cpu_before_s) / passed_s,
            chief_bytes_per_s=(sent - before) / passed_s,
            named_after_s=max(shared.get(worker, NAMED_AT_S) for worker in others) - killed_s,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--workers", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--watch-s", type=float, default=12.0, help="seconds of watching")
    parser.add_argument("--step-s", type=float, default=0.0, help="seconds of a step; 0: no steps")
    parser.add_argument("--lost", type=int, default=1, help="the worker that is killed")
    options = parser.parse_args()
    print(
        "| workers | all joined after | chief's processor time | of another worker, at most "
        "| chief, watching: of a core | bytes a second | a killed worker named by all after |"
    )
    print("|---|---|---|---|---|---|---|", flush=True)
    gc.freeze()  # Collections in the workers leave the shared pages alone.
    for workers in options.workers:
        costs = measure(workers, watch_s=options.watch_s, step_s=options.step_s, lost=options.lost)
        print(costs, flush=True)


if __name__ == "__main__":
    main()
