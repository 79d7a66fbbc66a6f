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
from pathlib import Path
from types import SimpleNamespace

import pytest

from tfdist.cluster import (
    Cluster,
    ClusterError,
    RendezvousError,
    Task,
    format_tf_config,
    meet,
    wait_for_servers,
)
from tfdist.cluster.rendezvous import chief as rendezvous_chief
from tfdist.cluster.rendezvous import newcomers, sockets
from tfdist.cluster.rendezvous.meeting import _follow
from tfdist.cluster.rendezvous.protocol import LINE_MAX_BYTES, Member, encode, hello_of, members_of
from tfdist.cluster.rendezvous.sockets import Patience, connect
from tfdist.testing.run import wait_until

# What takes milliseconds on an idle core. A peer that does not come is waited for longer.
SOON_S = 20.0


class MeetingWorker(threading.Thread):
    """A worker that meets the others in a thread: what it said, and how it ended."""

    def __init__(self, cluster: Cluster, index: int, timeout_s: float) -> None:
        super().__init__()
        self.said: list[str] = []
        self._meet = lambda: meet(
            cluster,
            cluster.workers[index],
            timeout_s=timeout_s,
            report_every_s=0.2,
            say=self.said.append,
        )
        self._error = ""

    def run(self) -> None:
        try:
            self._meet()
        except RendezvousError as error:
            self._error = str(error)

    def wait_for_end(self, limit_s: float = SOON_S) -> str:
        """Waits until `meet` has ended; "" if it returned, else the error's message."""
        self.join(limit_s)
        assert not self.is_alive(), f"still meeting after {limit_s} s; said {self.said}"
        return self._error

    def wait_until_said(self, fragment: str) -> None:
        is_said = wait_until(lambda: any(fragment in line for line in self.said), SOON_S)
        assert is_said, f"did not say {fragment!r}, but {self.said}"


MEET = """
import signal
from tfdist.cluster import find_cluster, meet
signal.signal(signal.SIGINT, signal.default_int_handler)  # the shell may have switched it off
meet(*find_cluster(), report_every_s=0.1, say=lambda line: print(line, flush=True))
"""


class Run:
    """The workers of one cluster; those that were started end with the test."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.started: list[MeetingWorker] = []

    def address(self, index: int) -> str:
        return self.cluster.address(self.cluster.workers[index])

    def port(self, index: int) -> int:
        return int(self.address(index).rpartition(":")[2])

    def name(self, index: int) -> str:
        return f"worker {index} ({self.address(index)})"

    def start(self, *indices: int, timeout_s: float = 3 * SOON_S) -> list[MeetingWorker]:
        workers = [MeetingWorker(self.cluster, index, timeout_s) for index in indices]
        for worker in workers:
            worker.start()
        self.started += workers
        return workers

    def start_process(self, index: int) -> "subprocess.Popen[str]":
        """Starts `meet` for a worker in a process of its own."""
        return subprocess.Popen(
            [sys.executable, "-c", MEET],
            env={
                **os.environ,
                "TF_CONFIG": format_tf_config(self.cluster, self.cluster.workers[index]),
            },
            cwd=Path(__file__).parents[3],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def knock(self, index: int = 0) -> socket.socket:
        """Connects to a worker's port as soon as something listens there."""
        end = time.monotonic() + SOON_S
        while True:
            try:
                return connect(self.address(index))
            except ConnectionRefusedError:
                assert time.monotonic() < end, f"worker {index} does not listen"
                time.sleep(0.02)

    def say_hello(self, index: int) -> socket.socket:
        """Connects to worker 0 as that worker would, and waits for its first answer."""
        connection = self.knock()
        connection.settimeout(5.0)
        hello = hello_of(members_of(self.cluster), index, process="by hand")
        connection.sendall(encode(hello))
        assert connection.recv(1 << 16)
        return connection


RunOf = Callable[..., Run]


@pytest.fixture
def run_of(
    free_ports: Callable[[int], list[int]], monkeypatch: pytest.MonkeyPatch
) -> Iterator[RunOf]:
    """Makes a run of so many workers, or of this cluster."""
    # Lets worker 0 end soon after a failure, which most tests here bring about.
    monkeypatch.setattr(rendezvous_chief, "_FAREWELL_S", 0.2)
    runs: list[Run] = []

    def make(count: int, *, host: str = "localhost", cluster: Cluster | None = None) -> Run:
        jobs = {"worker": tuple(f"{host}:{port}" for port in free_ports(count))}
        runs.append(Run(cluster or Cluster(jobs=jobs)))
        return runs[-1]

    yield make
    for run in runs:
        for worker in run.started:
            worker.wait_for_end(2 * SOON_S)


def check_all_meet(*workers: MeetingWorker) -> None:
    assert [worker.wait_for_end() for worker in workers] == [""] * len(workers)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_three_workers_meet_in_any_order(run_of: RunOf, order: tuple[int, ...]) -> None:
    check_all_meet(*run_of(3).start(*order))


def test_a_chief_hosts_the_meeting_and_others_need_not_come(
    run_of: RunOf, free_ports: Callable[[int], list[int]]
) -> None:
    jobs = ("worker", "chief", "ps", "evaluator")
    ports = free_ports(len(jobs))
    addresses = {job: (f"127.0.0.1:{port}",) for job, port in zip(jobs, ports, strict=True)}
    run = run_of(0, cluster=Cluster(jobs=addresses))
    check_all_meet(*run.start(0, 1))
    with pytest.raises(ClusterError, match="evaluator 0 is not a worker"):
        meet(run.cluster, Task(type="evaluator", index=0))


def test_the_ports_are_free_again_after_the_meeting(run_of: RunOf) -> None:
    run = run_of(2)
    for _ in range(3):
        check_all_meet(*run.start(0, 1))
    for index in (0, 1):
        with socket.create_server(("", run.port(index))):
            pass


def test_a_worker_alone_waits_for_no_other(run_of: RunOf) -> None:
    (worker,) = run_of(1).start(0)
    check_all_meet(worker)
    assert worker.said == []


def test_hosts_that_are_not_loopback_are_listened_on_everywhere(run_of: RunOf) -> None:
    # This host's name may not resolve, or to an address that is not this machine's.
    run = run_of(2, host="no-such-host.test")
    (worker_0,) = run.start(0)
    local = Cluster(jobs={"worker": tuple(f"127.0.0.1:{run.port(i)}" for i in (0, 1))})
    with run_of(0, cluster=local).knock() as connection:
        connection.settimeout(5.0)
        hello = hello_of(members_of(run.cluster), 1, process="by hand")
        connection.sendall(encode(hello))
        check_all_meet(worker_0)


def test_workers_meet_over_ipv6(run_of: RunOf) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    check_all_meet(*run_of(2, host="[::1]").start(0, 1))


def test_everybody_says_who_is_missing_and_gives_up(run_of: RunOf) -> None:
    run = run_of(4)
    missing = f"{run.name(2)} and {run.name(3)}"
    for worker in run.start(0, 1, timeout_s=1.5):
        error = worker.wait_for_end()
        assert error.startswith(f"{missing} did not come within 1.5 s.")
        assert error.count("\n") == 1
        assert any(
            line.startswith(f"Waiting for {missing}, ") and line.endswith(" s of 1.5 s ...")
            for line in worker.said
        )


@pytest.mark.parametrize(
    ("host", "problem"),
    [("localhost", "nothing listens there"), ("no-such.invalid", "its host name is unknown here")],
)
def test_a_worker_that_cannot_reach_worker_0_says_so(
    run_of: RunOf, host: str, problem: str
) -> None:
    run = run_of(2, host=host)
    (worker,) = run.start(1, timeout_s=0.5)
    expected = f"{run.name(0)} did not come within 0.5 s ({problem})."
    assert worker.wait_for_end().startswith(expected)
    if host == "localhost":  # The look-up of a name may take all of the time.
        line = f"Waiting for {run.name(0)}: {problem}, "
        assert any(one.startswith(line) for one in worker.said)


def test_a_late_worker_is_waited_for(run_of: RunOf) -> None:
    run = run_of(3)
    early = run.start(1, 0)
    for worker in early:
        worker.wait_until_said("Waiting for worker 2")
    check_all_meet(*early, *run.start(2))
    assert [worker.said[-1] for worker in early] == ["All 3 workers are here."] * 2


def test_another_cluster_ends_all_who_are_here(run_of: RunOf) -> None:
    run = run_of(4)
    right = run.start(0, 1)
    right[1].wait_until_said("Waiting for worker 2")
    other = run_of(0, cluster=Cluster(jobs={"worker": run.cluster.jobs["worker"][:3]}))
    errors = {worker.wait_for_end() for worker in (*right, *other.start(2))}
    assert len(errors) == 1
    error = errors.pop()
    assert error.startswith("worker 2 was started with another cluster: it lists ")
    assert error.endswith("Give all workers the same TF_CONFIG cluster.")


def test_a_worker_that_comes_just_after_a_failure_hears_of_it(
    run_of: RunOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous_chief, "_FAREWELL_S", 1.0)
    run = run_of(3)
    other = run_of(0, cluster=Cluster(jobs={"worker": run.cluster.jobs["worker"][:2]}))
    (chief,), (wrong,) = run.start(0), other.start(1)
    assert "another cluster" in wrong.wait_for_end()
    (late,) = run.start(2, timeout_s=5.0)
    assert late.wait_for_end() == chief.wait_for_end()


def test_a_second_process_of_one_task_ends_all_who_are_here(run_of: RunOf) -> None:
    run = run_of(3)
    workers = run.start(0, 1)
    workers[1].wait_until_said("Waiting for worker 2")
    with run.say_hello(1) as second:
        errors = {worker.wait_for_end() for worker in workers}
        assert second.recv(1) == b""
    assert len(errors) == 1
    assert errors.pop().startswith("Two processes were started as worker 1 (localhost:")


def test_a_worker_that_dies_is_missing_again_and_may_come_back(run_of: RunOf) -> None:
    run = run_of(3)
    (chief,) = run.start(0)
    run.say_hello(1).close()
    chief.wait_until_said(f"{run.name(1)} left before the start")
    chief.wait_until_said("Waiting for worker 1 (localhost:")
    for _ in range(20):  # Each comes before worker 0 knows that the last one has gone.
        run.say_hello(1).close()
    check_all_meet(chief, *run.start(1, 2))


def test_a_process_that_connects_again_is_no_second_process(run_of: RunOf) -> None:
    run = run_of(3)
    (chief,) = run.start(0)
    with run.say_hello(1), run.say_hello(1):
        check_all_meet(chief, *run.start(2))


@pytest.mark.processes
def test_worker_0_may_be_started_again(run_of: RunOf) -> None:
    run = run_of(3)
    (waiting,) = run.start(1)
    with run.start_process(0) as first:
        waiting.wait_until_said("Waiting for worker 2")
        first.kill()
        first.communicate()
    waiting.wait_until_said("Waiting for worker 0")
    check_all_meet(waiting, *run.start(0, 2))


def test_strangers_do_not_disturb(run_of: RunOf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous_chief, "HELLO_LIMIT_S", 0.5)
    run = run_of(3)
    workers = run.start(0, 1)
    run.knock().close()  # a health check
    run.knock(1).close()
    with contextlib.ExitStack() as stack:
        strangers = []
        for _ in range(3):
            for line in (
                b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
                b"\x16\x03\x01\x00\xff",
                b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
                b'{"protocol": "tfdist-rendezvous", "slow',
                b"\n",
                b"",
            ):
                strangers.append(stack.enter_context(run.knock()))
                strangers[-1].sendall(line)
        for connection in strangers:  # the silent ones, too, are cut off after the limit
            connection.settimeout(5.0)
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(1) == b""
        check_all_meet(*workers, *run.start(2))
    said = [line for line in workers[0].said if "Ignored" in line]
    assert said == ["Ignored a connection from 127.0.0.1 that is not a worker of this run."]


# Connects as often as it can, and says nothing.
FLOOD = """
import contextlib, socket, sys, time
until_s = time.monotonic() + 30
while time.monotonic() < until_s:
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", int(sys.argv[1])), 1.0).close()
"""


@pytest.mark.processes
def test_strangers_that_keep_connecting_do_not_hold_off_the_start(run_of: RunOf) -> None:
    run = run_of(3)
    (chief,) = run.start(0)
    run.knock().close()
    command = [sys.executable, "-S", "-c", FLOOD, str(run.port(0))]
    floods = [subprocess.Popen(command) for _ in range(2)]
    try:
        (early,) = run.start(1)
        early.wait_until_said("Waiting for worker 2 (")
        check_all_meet(chief, early, *run.start(2))
    finally:
        for flood in floods:
            flood.kill()
            flood.wait()
    for line in chief.said + early.said:
        assert "Waiting for ," not in line


def test_worker_0_starts_while_more_strangers_wait_than_it_has_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(newcomers, "_AT_ONCE", 1)
    members = [Member(name=f"worker {index}", address=f"host{index}:1") for index in range(2)]
    with contextlib.ExitStack() as closing:
        listener = closing.enter_context(socket.create_server(("127.0.0.1", 0), backlog=64))
        worker, *_ = [
            closing.enter_context(socket.create_connection(listener.getsockname()))
            for _ in range(32)
        ]
        worker.sendall(encode(hello_of(members, 1, process="by hand")))
        joined = rendezvous_chief.Gathering(members, [listener], Patience(SOON_S)).run()
        closing.enter_context(joined[1])
        closing.enter_context(listener.accept()[0])  # One that worker 0 has not looked at.
        assert joined[1].getpeername() == worker.getsockname()


def test_another_program_at_worker_0s_address_is_noticed(run_of: RunOf) -> None:
    run = run_of(2)
    with socket.create_server(("127.0.0.1", run.port(0))) as server:
        server.settimeout(0.1)
        (worker,) = run.start(1, timeout_s=1.0)
        while worker.is_alive():
            with contextlib.suppress(TimeoutError):
                connection, _ = server.accept()
                with connection:
                    connection.sendall(b"220 mail.example.org ESMTP\r\n")
    assert "another program answers there" in worker.wait_for_end()
    assert any(f"{run.name(0)}: another program answers there" in line for line in worker.said)


def test_a_line_without_end_is_not_kept(run_of: RunOf) -> None:
    hello = hello_of(members_of(run_of(2).cluster), 1, process="p")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sending = threading.Thread(target=theirs.sendall, args=(b"x" * (LINE_MAX_BYTES + 1),))
        sending.start()
        problem = _follow(ours, hello, Patience(2.0, 5.0))
        sending.join()
    assert problem == "another program answers there"


def test_a_program_that_never_answers_at_worker_0s_address_is_noticed(run_of: RunOf) -> None:
    run = run_of(2)
    with socket.create_server(("127.0.0.1", run.port(0))):
        (worker,) = run.start(1, timeout_s=0.5)
        worker.wait_until_said("it does not answer")
        assert run.name(0) in worker.wait_for_end()


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("host", ["127.0.0.1", ""])
def test_a_port_in_use_is_named_at_once(run_of: RunOf, index: int, host: str) -> None:
    run = run_of(2)
    port = run.port(index)
    with socket.create_server((host, port)):
        (worker,) = run.start(index)
        error = worker.wait_for_end()
    assert error.startswith(
        f"port {port} (this worker's address, {run.name(index)}) is already in use."
    )
    assert "choose another port" in error


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
@pytest.mark.parametrize(("index", "present"), [(0, []), (1, []), (1, [0])])
def test_ctrl_c_ends_the_waiting_and_the_worker_may_be_started_again(
    run_of: RunOf, index: int, present: list[int]
) -> None:
    run = run_of(3)
    early = run.start(*present)
    with run.start_process(index) as process:
        assert process.stdout is not None
        expected = "Waiting for worker 2" if present else "Waiting for"
        assert any(expected in line for line in process.stdout)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=SOON_S)
    assert errors.splitlines()[-1] == "Interrupted."
    check_all_meet(*early, *run.start(*({0, 1, 2} - {*present})))


# After TensorFlow's servers were started, each worker checks that it can reach the others'.


def serve(run: Run, index: int) -> socket.socket:
    return socket.create_server(("localhost", run.port(index)))


def test_servers_that_accept_are_enough(run_of: RunOf) -> None:
    run = run_of(3)
    said: list[str] = []
    with serve(run, 0), serve(run, 1), serve(run, 2):
        for task in run.cluster.workers:
            wait_for_servers(run.cluster, task, timeout_s=5.0, say=said.append)
    assert said == []


def test_ps_and_evaluator_are_not_asked(free_ports: Callable[[int], list[int]]) -> None:
    jobs = zip(("chief", "ps", "evaluator"), free_ports(3), strict=True)
    cluster = Cluster(jobs={job: (f"localhost:{port}",) for job, port in jobs})
    wait_for_servers(cluster, Task(type="chief", index=0), timeout_s=0.0)


def test_a_server_that_never_answers_is_named(run_of: RunOf) -> None:
    run = run_of(3)
    said: list[str] = []
    limits = {"timeout_s": 0.6, "report_every_s": 0.2}
    with serve(run, 1), pytest.raises(RendezvousError) as caught:
        wait_for_servers(run.cluster, run.cluster.workers[0], say=said.append, **limits)
    missing, message = run.name(2), str(caught.value)
    assert message.startswith(f"{missing} joined, but the TensorFlow server there cannot be reach")
    assert "nothing listens there for 0.6 s" in message
    assert "firewall between the hosts?" in message
    assert said[0].startswith(f"Waiting for the TensorFlow server of {missing}: nothing listens")


def test_a_server_that_starts_late_is_waited_for(run_of: RunOf) -> None:
    run = run_of(2)
    has_waited = threading.Event()

    def wait() -> None:
        limits = {"timeout_s": 10.0, "report_every_s": 0.1}
        task = run.cluster.workers[0]
        wait_for_servers(run.cluster, task, say=lambda line: has_waited.set(), **limits)

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert has_waited.wait(5.0)
    assert waiting.is_alive()
    with serve(run, 1):
        waiting.join(10.0)
        assert not waiting.is_alive()


def test_tries_follow_each_other_closely_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: sum(pauses), sleep=pauses.append)
    monkeypatch.setattr(sockets, "time", clock)
    patience = Patience(limit_s=300.0, report_every_s=5.0)
    for _ in range(30):
        patience.pause()
    assert sum(pauses[:5]) < 0.1
    assert pauses[-1] == max(pauses) == 0.2
