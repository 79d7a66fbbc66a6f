"""A worker that is gone is noticed while the peers_of train."""

import dataclasses
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from tfdist.cluster import Cluster, PeerWatch, Task, WorkerLostError, peers_of
from tfdist.cluster.rendezvous import peer_watch
from tfdist.cluster.rendezvous.protocol import Member
from tfdist.process.exit_codes import LOST_WORKER


@pytest.fixture(autouse=True)
def quick_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_watch, "_PROBE_EVERY_S", 0.02)


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        yield listener


def member(server: socket.socket) -> Member:
    return Member(name="worker 1", address=f"127.0.0.1:{server.getsockname()[1]}")


def test_every_worker_watches_all_others() -> None:
    addresses = tuple(f"localhost:{port}" for port in (1, 2, 3))
    cluster = Cluster(jobs={"chief": addresses[:1], "worker": addresses[1:]})
    watched = [[member.name for member in peers_of(cluster, task)] for task in cluster.workers]
    assert watched == [["worker 0", "worker 1"], ["chief", "worker 1"], ["chief", "worker 0"]]
    assert peers_of(cluster, Task(type="worker", index=1))[0].address == "localhost:1"


def test_the_worker_that_went_first_is_named(server: socket.socket) -> None:
    interrupted = threading.Event()
    with (
        socket.create_server(("127.0.0.1", 0), backlog=1024) as other,
        pytest.raises(WorkerLostError) as caught,
        PeerWatch(member(server), dataclasses.replace(member(other), name="worker 2")) as watch,
    ):
        watch.start(interrupted.set)
        other.close()
        assert interrupted.wait(10.0)
        server.close()
        raise RuntimeError("the session was closed")
    assert "Lost worker 2" in str(caught.value)


def test_a_worker_that_ends_when_nobody_waits_for_it_any_more_is_not_lost(
    server: socket.socket,
) -> None:
    interrupted = threading.Event()
    with PeerWatch(member(server)) as watch:
        watch.start(interrupted.set)
        watch.stop()
        server.close()
        assert not interrupted.wait(0.5)


def test_an_ended_worker_interrupts_the_wait_and_is_named(server: socket.socket) -> None:
    peer, interrupted = member(server), threading.Event()
    with pytest.raises(WorkerLostError) as caught, PeerWatch(peer) as watch:
        watch.start(interrupted.set)
        server.close()
        assert interrupted.wait(10.0)
        raise RuntimeError("the session was closed")
    assert str(caught.value) == (
        f"Lost worker 1 ({peer.address}) while training: its process has ended. "
        "See its output for the cause."
    )


def test_a_worker_that_does_not_answer_is_lost_after_a_while(
    server: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_answer(address: str) -> socket.socket:
        raise TimeoutError

    monkeypatch.setattr(peer_watch, "connect", no_answer)
    monkeypatch.setattr(peer_watch, "_SILENCE_UNTIL_LOST_S", 0.1)
    interrupted = threading.Event()
    with (
        pytest.raises(WorkerLostError, match="it does not answer"),
        PeerWatch(member(server)) as watch,
    ):
        watch.start(interrupted.set)
        assert interrupted.wait(10.0)
        raise RuntimeError("the session was closed")


_WAIT_IN_VAIN = """
import sys, threading
from tfdist.cluster import PeerWatch; from tfdist.cluster.rendezvous import peer_watch
from tfdist.cluster.rendezvous.protocol import Member
peer_watch._PROBE_EVERY_S, peer_watch._GRACE_S, peer_watch._LEAVING_S = 0.02, 0.1, 0.1
with PeerWatch(Member(name="worker 1", address=sys.argv[1])) as watch:
    watch.start({interrupt})
    threading.Event().wait(60.0)
    print("waited to the end")
"""


@pytest.mark.parametrize("interrupt", ["None", "threading.Event().wait"])
def test_a_process_that_nothing_interrupts_is_ended_with_the_same_line(
    server: socket.socket, interrupt: str
) -> None:
    peer = member(server)
    server.close()
    command = [sys.executable, "-c", _WAIT_IN_VAIN.format(interrupt=interrupt), peer.address]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=50)
    assert (ended.returncode, ended.stdout) == (LOST_WORKER, "")
    assert ended.stderr == (
        f"WorkerLostError: Lost worker 1 ({peer.address}) while training: its process has ended. "
        "See its output for the cause.\n"
    )


def test_errors_pass_while_the_worker_is_there(server: socket.socket) -> None:
    interrupted = threading.Event()
    with pytest.raises(ValueError, match="of the user"), PeerWatch(member(server)) as watch:
        watch.start(interrupted.set)
        for _ in range(3):
            server.accept()[0].close()  # three probes
        raise ValueError("of the user")
    assert not interrupted.is_set()


def test_a_watch_over_nobody_does_nothing() -> None:
    with PeerWatch() as watch:
        watch.start()
