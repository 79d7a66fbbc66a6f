"""Workers meet before TensorFlow starts, or every one of them says why they do not."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tfdist.cluster import Cluster, ClusterError, RendezvousError, Task, format_tf_config, meet
from tfdist.cluster.rendezvous import chief as rendezvous_chief
from tfdist.cluster.rendezvous.meeting import _follow
from tfdist.cluster.rendezvous.protocol import (
    LINE_MAX_BYTES,
    Hello,
    encode,
    members_of,
)
from tfdist.cluster.rendezvous.sockets import Patience, connect

MakeCluster = Callable[[int], Cluster]
# What takes milliseconds on an idle core. A peer that does not come is waited for longer.
SOON_S = 20.0


@dataclass
class MeetingWorker:
    """A worker that meets the others in a thread: what it said, and how it ended."""

    said: list[str] = field(default_factory=list)
    error: Exception | None = None
    thread: threading.Thread | None = None

    def is_meeting(self) -> bool:
        """True while `meet` is still running."""
        return self.thread is not None and self.thread.is_alive()

    def wait_for_end(self, limit_s: float = SOON_S) -> str:
        """Waits until `meet` has ended; "" if it returned, else the error's message."""
        assert self.thread is not None
        self.thread.join(limit_s)
        assert not self.thread.is_alive(), f"still meeting after {limit_s} s; said {self.said}"
        return str(self.error or "")

    def wait_until_said(self, fragment: str, limit_s: float = SOON_S) -> None:
        """Waits until a line with the fragment was said."""
        polls = threading.Event()
        for _ in range(int(limit_s / 0.02)):
            if any(fragment in line for line in self.said):
                return
            polls.wait(0.02)
        raise AssertionError(f"did not say {fragment!r} in {limit_s} s, but {self.said}")


@pytest.fixture(autouse=True)
def short_farewell(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets worker 0 end soon after a failure, which most tests here bring about."""
    monkeypatch.setattr(rendezvous_chief, "_FAREWELL_S", 0.2)


@pytest.fixture
def start_worker() -> Iterator[Callable[..., MeetingWorker]]:
    """Starts `meet` for worker `index` of a cluster in a thread that ends with the test."""
    started: list[MeetingWorker] = []

    def start(cluster: Cluster, index: int, timeout_s: float = 3 * SOON_S) -> MeetingWorker:
        worker = MeetingWorker()
        task = cluster.workers[index]

        def run() -> None:
            try:
                meet(cluster, task, timeout_s=timeout_s, report_every_s=0.2, say=worker.said.append)
            except RendezvousError as error:
                worker.error = error

        worker.thread = threading.Thread(target=run)
        worker.thread.start()
        started.append(worker)
        return worker

    yield start
    for worker in started:
        worker.wait_for_end(limit_s=2 * SOON_S)


StartWorker = Callable[..., MeetingWorker]


def port_of(cluster: Cluster, index: int) -> int:
    return int(cluster.address(cluster.workers[index]).rpartition(":")[2])


def say_hello(cluster: Cluster, index: int) -> socket.socket:
    """Connects to worker 0 as that worker would, and waits for its first answer."""
    connection = connect(cluster.address(cluster.workers[0]))
    connection.settimeout(5.0)
    connection.sendall(encode(Hello(members=members_of(cluster), index=index, process="by hand")))
    assert connection.recv(1 << 16)
    return connection


def knock(cluster: Cluster, index: int = 0, limit_s: float = SOON_S) -> socket.socket:
    """Connects to a worker's port as soon as something listens there."""
    end = time.monotonic() + limit_s
    while True:
        try:
            return connect(cluster.address(cluster.workers[index]))
        except ConnectionRefusedError:
            assert time.monotonic() < end, f"worker {index} does not listen"
            time.sleep(0.02)


MEET = """
import signal
from tfdist.cluster import find_cluster, meet
signal.signal(signal.SIGINT, signal.default_int_handler)  # the shell may have switched it off
meet(*find_cluster(), report_every_s=0.1, say=lambda line: print(line, flush=True))
"""


def start_process(cluster: Cluster, index: int) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", MEET],
        env={**os.environ, "TF_CONFIG": format_tf_config(cluster, cluster.workers[index])},
        cwd=Path(__file__).parents[3],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_three_workers_meet_in_any_order(
    local_cluster: MakeCluster, start_worker: StartWorker, order: tuple[int, ...]
) -> None:
    cluster = local_cluster(3)
    workers = [start_worker(cluster, index) for index in order]
    assert [worker.wait_for_end() for worker in workers] == ["", "", ""]


def test_a_chief_hosts_the_meeting_and_others_need_not_come(
    free_ports: Callable[[int], list[int]], start_worker: StartWorker
) -> None:
    jobs = ("worker", "chief", "ps", "evaluator")
    ports = free_ports(len(jobs))
    cluster = Cluster(
        jobs={job: (f"127.0.0.1:{port}",) for job, port in zip(jobs, ports, strict=True)}
    )
    workers = [start_worker(cluster, index) for index in (0, 1)]
    assert [worker.wait_for_end() for worker in workers] == ["", ""]
    with pytest.raises(ClusterError, match="evaluator 0 is not a worker"):
        meet(cluster, Task(type="evaluator", index=0))


def test_the_ports_are_free_again_after_the_meeting(
    local_cluster: MakeCluster, start_worker: StartWorker
) -> None:
    cluster = local_cluster(2)
    for _ in range(3):
        workers = [start_worker(cluster, index) for index in (0, 1)]
        assert [worker.wait_for_end() for worker in workers] == ["", ""]
    for index in (0, 1):
        with socket.create_server(("", port_of(cluster, index))):
            pass


def test_a_worker_alone_waits_for_no_other(local_cluster: MakeCluster) -> None:
    cluster = local_cluster(1)
    said: list[str] = []
    meet(cluster, cluster.workers[0], say=said.append)
    assert said == []


def test_hosts_that_are_not_loopback_are_listened_on_everywhere(
    free_ports: Callable[[int], list[int]], start_worker: StartWorker
) -> None:
    # This host's name may not resolve, or to an address that is not this machine's.
    cluster = Cluster(jobs={"worker": tuple(f"no-such-host.test:{p}" for p in free_ports(2))})
    worker_0 = start_worker(cluster, 0)
    local = Cluster(jobs={"worker": tuple(f"127.0.0.1:{port_of(cluster, i)}" for i in (0, 1))})
    with knock(local) as connection:
        connection.settimeout(5.0)
        connection.sendall(encode(Hello(members=members_of(cluster), index=1, process="by hand")))
        assert worker_0.wait_for_end() == ""


def test_workers_meet_over_ipv6(
    free_ports: Callable[[int], list[int]], start_worker: StartWorker
) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    cluster = Cluster(jobs={"worker": tuple(f"[::1]:{port}" for port in free_ports(2))})
    workers = [start_worker(cluster, index) for index in (0, 1)]
    assert [worker.wait_for_end() for worker in workers] == ["", ""]


def test_everybody_says_who_is_missing_and_gives_up(
    local_cluster: MakeCluster, start_worker: StartWorker
) -> None:
    cluster = local_cluster(4)
    workers = [start_worker(cluster, index, timeout_s=1.5) for index in (0, 1)]
    missing = " and ".join(
        f"worker {index} ({cluster.address(cluster.workers[index])})" for index in (2, 3)
    )
    for worker in workers:
        error = worker.wait_for_end()
        assert error.startswith(f"{missing} did not come within 1.5 s.")
        assert error.count("\n") == 1
        assert any(
            line.startswith(f"Waiting for {missing}, ") and line.endswith(" s of 1.5 s ...")
            for line in worker.said
        )


def test_a_worker_that_cannot_reach_worker_0_says_so(
    local_cluster: MakeCluster, start_worker: StartWorker
) -> None:
    cluster = local_cluster(2)
    worker = start_worker(cluster, 1, timeout_s=0.7)
    leader = f"worker 0 (localhost:{port_of(cluster, 0)})"
    expected = f"{leader} did not come within 0.7 s (nothing listens there)."
    assert worker.wait_for_end().startswith(expected)
    assert any(line.startswith(f"Waiting for {leader}: nothing listens") for line in worker.said)


def test_an_unknown_host_is_named(
    free_ports: Callable[[int], list[int]], start_worker: StartWorker
) -> None:
    cluster = Cluster(jobs={"worker": tuple(f"no-such-host.invalid:{p}" for p in free_ports(2))})
    error = start_worker(cluster, 1, timeout_s=0.3).wait_for_end()
    assert "worker 0 (no-such-host.invalid:" in error
    assert "host name is unknown here" in error


def test_a_late_worker_is_waited_for(local_cluster: MakeCluster, start_worker: StartWorker) -> None:
    cluster = local_cluster(3)
    early = [start_worker(cluster, index) for index in (1, 0)]
    for worker in early:
        worker.wait_until_said("Waiting for worker 2")
    late = start_worker(cluster, 2)
    assert [worker.wait_for_end() for worker in (*early, late)] == ["", "", ""]
    assert [worker.said[-1] for worker in early] == ["All 3 workers are here."] * 2


def test_another_cluster_ends_all_who_are_here(
    local_cluster: MakeCluster, start_worker: StartWorker
) -> None:
    cluster = local_cluster(4)
    right = [start_worker(cluster, index) for index in (0, 1)]
    right[1].wait_until_said("Waiting for worker 2")
    start = time.monotonic()
    wrong = start_worker(Cluster(jobs={"worker": cluster.jobs["worker"][:3]}), 2)
    errors = {worker.wait_for_end() for worker in (*right, wrong)}
    assert time.monotonic() - start < SOON_S
    assert len(errors) == 1
    error = errors.pop()
    assert error.startswith("worker 2 was started with another cluster: it lists ")
    assert error.endswith("Give all workers the same TF_CONFIG cluster.")


def test_a_worker_that_comes_just_after_a_failure_hears_of_it(
    local_cluster: MakeCluster, start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous_chief, "_FAREWELL_S", 1.0)
    cluster = local_cluster(3)
    other = Cluster(jobs={"worker": cluster.jobs["worker"][:2]})
    chief, wrong = start_worker(cluster, 0), start_worker(other, 1)
    assert "another cluster" in wrong.wait_for_end()
    late = start_worker(cluster, 2, timeout_s=5.0)
    assert late.wait_for_end() == chief.wait_for_end()


def test_a_second_process_of_one_task_ends_all_who_are_here(
    local_cluster: MakeCluster, start_worker: StartWorker
) -> None:
    cluster = local_cluster(3)
    workers = [start_worker(cluster, index) for index in (0, 1)]
    workers[1].wait_until_said("Waiting for worker 2")
    with say_hello(cluster, 1) as second:
        errors = {worker.wait_for_end() for worker in workers}
        assert second.recv(1) == b""
    assert len(errors) == 1
    assert errors.pop().startswith("Two processes were started as worker 1 (localhost:")


def test_a_worker_that_dies_is_missing_again_and_may_come_back(
    local_cluster: MakeCluster, start_worker: StartWorker
) -> None:
    cluster = local_cluster(3)
    chief = start_worker(cluster, 0)
    knock(cluster).close()
    say_hello(cluster, 1).close()
    chief.wait_until_said(f"worker 1 (localhost:{port_of(cluster, 1)}) left before the start")
    chief.wait_until_said("Waiting for worker 1 (localhost:")
    others = [start_worker(cluster, index) for index in (1, 2)]
    assert [worker.wait_for_end() for worker in (chief, *others)] == ["", "", ""]


def test_a_worker_that_restarts_at_once_is_no_second_process(
    local_cluster: MakeCluster, start_worker: StartWorker
) -> None:
    cluster = local_cluster(3)
    chief = start_worker(cluster, 0)
    knock(cluster).close()
    for _ in range(20):
        say_hello(cluster, 1).close()
    others = [start_worker(cluster, index) for index in (1, 2)]
    assert [worker.wait_for_end() for worker in (chief, *others)] == ["", "", ""]


def test_a_process_that_connects_again_is_no_second_process(
    local_cluster: MakeCluster, start_worker: StartWorker
) -> None:
    cluster = local_cluster(3)
    chief = start_worker(cluster, 0)
    knock(cluster).close()
    with say_hello(cluster, 1), say_hello(cluster, 1):
        assert start_worker(cluster, 2).wait_for_end() == ""
        assert chief.wait_for_end() == ""


@pytest.mark.processes
def test_worker_0_may_be_started_again(
    local_cluster: MakeCluster, start_worker: StartWorker
) -> None:
    cluster = local_cluster(3)
    waiting = start_worker(cluster, 1)
    with start_process(cluster, 0) as first:
        waiting.wait_until_said("Waiting for worker 2")
        first.kill()
        first.communicate()
    waiting.wait_until_said("Waiting for worker 0")
    others = [start_worker(cluster, index) for index in (0, 2)]
    assert [worker.wait_for_end() for worker in (waiting, *others)] == ["", "", ""]


@pytest.fixture
def strangers() -> Iterator[list[socket.socket]]:
    """Connections that stay open during the test."""
    connections: list[socket.socket] = []
    yield connections
    for connection in connections:
        connection.close()


def test_strangers_do_not_disturb(
    local_cluster: MakeCluster,
    start_worker: StartWorker,
    strangers: list[socket.socket],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rendezvous_chief, "HELLO_LIMIT_S", 0.5)
    cluster = local_cluster(3)
    workers = [start_worker(cluster, index) for index in (0, 1)]
    knock(cluster).close()  # a health check
    knock(cluster, index=1).close()
    for _ in range(3):
        for line in (
            b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
            b"\x16\x03\x01\x00\xff",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b'{"protocol": "tfdist-rendezvous", "slow',
            b"\n",
            b"",
        ):
            strangers.append(knock(cluster))
            strangers[-1].sendall(line)
    for connection in strangers:  # the silent ones, too, are cut off after the limit
        connection.settimeout(5.0)
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(1) == b""
    workers.append(start_worker(cluster, 2))
    assert [worker.wait_for_end() for worker in workers] == ["", "", ""]
    said = [line for line in workers[0].said if "Ignored" in line]
    assert said == ["Ignored a connection from 127.0.0.1 that is not a worker of this run."]


def test_another_program_at_worker_0s_address_is_noticed(
    local_cluster: MakeCluster, start_worker: StartWorker
) -> None:
    cluster = local_cluster(2)
    with socket.create_server(("127.0.0.1", port_of(cluster, 0))) as server:
        server.settimeout(0.1)
        worker = start_worker(cluster, 1, timeout_s=1.0)
        while worker.is_meeting():
            with contextlib.suppress(TimeoutError):
                connection, _ = server.accept()
                with connection:
                    connection.sendall(b"220 mail.example.org ESMTP\r\n")
    assert "another program answers there" in worker.wait_for_end()
    assert any("worker 0 (localhost:" in line for line in worker.said)
    assert any("another program answers there" in line for line in worker.said)


def test_a_line_without_end_is_not_kept(local_cluster: MakeCluster) -> None:
    hello = Hello(members=members_of(local_cluster(2)), index=1, process="p")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sending = threading.Thread(target=theirs.sendall, args=(b"x" * (LINE_MAX_BYTES + 1),))
        sending.start()
        problem = _follow(ours, hello, Patience(2.0, 5.0), print)
        sending.join()
    assert problem == "another program answers there"


def test_a_program_that_never_answers_at_worker_0s_address_is_noticed(
    local_cluster: MakeCluster, start_worker: StartWorker
) -> None:
    cluster = local_cluster(2)
    with socket.create_server(("127.0.0.1", port_of(cluster, 0))):
        worker = start_worker(cluster, 1, timeout_s=0.5)
        worker.wait_until_said("it does not answer")
        assert "worker 0 (localhost:" in worker.wait_for_end()


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("host", ["127.0.0.1", ""])
def test_a_port_in_use_is_named_at_once(local_cluster: MakeCluster, index: int, host: str) -> None:
    cluster = local_cluster(2)
    port = port_of(cluster, index)
    with socket.create_server((host, port)), pytest.raises(RendezvousError) as caught:
        meet(cluster, cluster.workers[index], timeout_s=SOON_S)
    assert str(caught.value).startswith(
        f"port {port} (this worker's address, worker {index} (localhost:{port})) is already in use."
    )
    assert "choose another port" in str(caught.value)


def test_a_connection_of_a_port_with_itself_counts_as_nobody_there(
    free_ports: Callable[[int], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    [port] = free_ports(1)
    create_connection = socket.create_connection

    def from_the_same_port(address: tuple[str, int], timeout: float) -> socket.socket:
        return create_connection(address, timeout=timeout, source_address=address)

    monkeypatch.setattr(socket, "create_connection", from_the_same_port)
    with pytest.raises(ConnectionRefusedError):
        connect(f"127.0.0.1:{port}")
    with socket.create_server(("127.0.0.1", port)):
        pass


@pytest.mark.processes
@pytest.mark.parametrize("index", [0, 1])
def test_ctrl_c_ends_the_waiting(
    local_cluster: MakeCluster, start_worker: StartWorker, index: int
) -> None:
    cluster = local_cluster(3)
    with start_process(cluster, index) as process:
        assert process.stdout is not None
        assert any("Waiting for" in line for line in process.stdout)
        start = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=2 * SOON_S)
    assert time.monotonic() - start < SOON_S
    assert errors.splitlines()[-1] == "Interrupted."
    with socket.create_server(("127.0.0.1", port_of(cluster, index))):
        pass


@pytest.mark.processes
def test_ctrl_c_ends_the_waiting_among_connected_workers(
    local_cluster: MakeCluster, start_worker: StartWorker
) -> None:
    cluster = local_cluster(3)
    chief = start_worker(cluster, 0)
    with start_process(cluster, 1) as process:
        assert process.stdout is not None
        assert any("Waiting for worker 2" in line for line in process.stdout)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=SOON_S)
    chief.wait_until_said("left before the start")
    others = [start_worker(cluster, index) for index in (1, 2)]
    assert [worker.wait_for_end() for worker in (chief, *others)] == ["", "", ""]
