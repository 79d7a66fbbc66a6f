"""A worker that is lost is noticed while the others train."""

import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from tfdist.cluster import PeerWatch, WorkerLostError
from tfdist.cluster.rendezvous import membership as module
from tfdist.cluster.rendezvous import peer_watch
from tfdist.cluster.rendezvous.membership import Membership
from tfdist.process.exit_codes import LOST_WORKER

Make = Callable[[int], list[Membership]]

LINE = (
    "Lost worker 1 (host1:1) while training: its process has ended. See its output for the cause."
)


@pytest.fixture(autouse=True)
def quick_news(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BEAT_S", 0.05)
    monkeypatch.setattr(peer_watch, "_NEWS_DELAY_S", 0.05)
    monkeypatch.setattr(peer_watch, "_FAILURE_DELAY_S", 0.3)


@pytest.mark.parametrize(
    ("end", "why"),
    [
        (lambda other: other.close(), "its process has ended"),
        (
            lambda other: other.set_failure("ValueError: no"),
            "its training has failed: ValueError: no",
        ),
    ],
    ids=["its process has ended", "its training has failed"],
)
def test_the_first_worker_that_is_lost_interrupts_the_wait_and_is_named(
    make_memberships: Make, end: Callable[[Membership], None], why: str
) -> None:
    chief, one, other = make_memberships(3)
    interrupted = threading.Event()
    with pytest.raises(WorkerLostError) as caught, PeerWatch(chief) as watch:
        watch.start(interrupted.set)
        end(other)
        assert interrupted.wait(10.0)
        one.close()
        raise RuntimeError("the session was closed")
    assert str(caught.value) == (
        f"Lost worker 2 (host2:1) while training: {why}. See its output for the cause."
    )


def test_a_watch_may_end_while_a_loss_is_being_told(
    make_memberships: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    begins, may_start = threading.Event(), threading.Event()

    class LateThread(threading.Thread):
        def start(self) -> None:
            begins.set()
            assert may_start.wait(10.0)
            super().start()

    chief, other = make_memberships(2)
    with monkeypatch.context() as patched, PeerWatch(chief) as watch:
        patched.setattr(threading, "Thread", LateThread)
        watch.start()
        other.close()
        assert begins.wait(10.0)
    may_start.set()


def _ends_when_no_worker_waits(watch: PeerWatch, other: Membership) -> None:
    watch.stop()
    other.close()


def _trains_again_after_a_failure(watch: PeerWatch, other: Membership) -> None:
    other.set_failure("ValueError: no")
    other.set_failure("")


def _ends_but_is_not_watched(watch: PeerWatch, other: Membership) -> None:
    other.close()


@pytest.mark.parametrize(
    ("end", "among"),
    [
        (_ends_when_no_worker_waits, None),
        (_trains_again_after_a_failure, None),
        (_ends_but_is_not_watched, (0, 1)),
    ],
)
def test_a_worker_that_no_other_needs_is_not_lost(
    make_memberships: Make, end: Callable[..., None], among: tuple[int, ...] | None
) -> None:
    chief, _, other = make_memberships(3)
    interrupted = threading.Event()
    with PeerWatch(chief, among=among) as watch:
        watch.start(interrupted.set)
        end(watch, other)
        assert not interrupted.wait(0.6)


def test_an_error_of_the_user_that_comes_first_stays(make_memberships: Make) -> None:
    chief, other = make_memberships(2)
    with pytest.raises(ValueError, match="of the user"), PeerWatch(chief) as watch:
        watch.start(threading.Event().wait)
        other.set_failure("ValueError: the same on all workers")
        raise ValueError("of the user")


def test_a_watch_over_no_worker_does_nothing() -> None:
    with PeerWatch() as watch:
        watch.start()


_WAIT_IN_VAIN = """
import socket, threading
from tfdist.cluster import PeerWatch
from tfdist.cluster.rendezvous import peer_watch
from tfdist.cluster.rendezvous.membership import Membership
from tfdist.cluster.rendezvous.protocol import Member
peer_watch._NEWS_DELAY_S, peer_watch._GRACE_S, peer_watch._LEAVING_S = {delays}
with socket.create_server(("127.0.0.1", 0)) as listener:
    other = socket.create_connection(listener.getsockname())
    connection, _ = listener.accept()
members = [Member(name=f"worker {{i}}", address=f"host{{i}}:1") for i in range(2)]
with PeerWatch(Membership(members, 0, {{1: connection}}), leaving_s={leaving_s}) as watch:
    watch.start({interrupt})
    other.close()
    threading.Event().wait(60.0)
    print("waited to the end")
"""


@pytest.mark.processes
@pytest.mark.parametrize("interrupt", ["None", "threading.Event().wait"])
@pytest.mark.parametrize(
    ("delays", "leaving_s"),
    [((0.02, 0.1, 0.1), None), ((0.02, 600.0, 600.0), 0.1)],
    ids=["the usual time", "a time of its own"],
)
def test_a_process_that_nothing_interrupts_is_ended_with_the_same_line(
    interrupt: str, delays: tuple[float, float, float], leaving_s: float | None
) -> None:
    program = _WAIT_IN_VAIN.format(interrupt=interrupt, delays=delays, leaving_s=leaving_s)
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=50)
    assert (ended.returncode, ended.stdout) == (LOST_WORKER, "")
    assert ended.stderr == f"WorkerLostError: {LINE}\n"


# The processes share a pipe: "joined" from each, then the line of each that has noticed a loss.
_MANY = """
import os, signal, sys, threading
from tfdist.cluster import Cluster, PeerWatch, WorkerLostError
from tfdist.cluster.rendezvous.meeting import join
from tfdist.cluster.rendezvous.sockets import Patience
cluster = Cluster(jobs={"worker": tuple(f"localhost:{port}" for port in sys.argv[2:])})
read, write = os.pipe()

def watch(index):
    membership = join(cluster, cluster.workers[index], Patience(say=lambda line: None))
    os.write(write, f"joined {index} {threading.active_count()}\\n".encode())
    interrupted = threading.Event()
    try:
        with PeerWatch(membership) as peers:
            peers.start(interrupted.set)
            assert interrupted.wait(15.0)
            raise RuntimeError("the session was closed")
    except WorkerLostError as error:
        os.write(write, f"{error}\\n".encode())

pids = []
for index in range(cluster.num_workers):
    pids.append(os.fork())
    if not pids[-1]:
        try:
            watch(index)
        finally:
            os._exit(0)
os.close(write)
with os.fdopen(read) as lines:
    for _ in pids:
        print(next(lines), end="", flush=True)
    os.kill(pids[int(sys.argv[1])], signal.SIGKILL)
    print(*lines, sep="", end="")
for pid in pids:
    os.waitpid(pid, 0)
"""


@pytest.mark.processes
@pytest.mark.parametrize("killed", [0, 11])
def test_each_of_many_workers_names_the_one_that_was_killed_and_has_one_more_thread(
    free_ports: Callable[[int], list[int]], killed: int
) -> None:
    ports = free_ports(20)
    command = [sys.executable, "-c", _MANY, str(killed), *map(str, ports)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=50, check=True)
    lines = ended.stdout.splitlines()
    assert sorted(lines[:20]) == sorted(f"joined {index} 2" for index in range(20))
    lost = f"worker {killed} (localhost:{ports[killed]})"
    line = f"Lost {lost} while training: its process has ended. See its output for the cause."
    assert lines[20:] == [line] * 19
