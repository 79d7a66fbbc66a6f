"""After TensorFlow's servers were started, each worker checks that it can reach the others'."""

import contextlib
import socket
import threading
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from tfdist.cluster import Cluster, RendezvousError, Task, wait_for_servers
from tfdist.cluster.rendezvous import sockets

MakeCluster = Callable[[int], Cluster]


def serve(cluster: Cluster, index: int) -> socket.socket:
    host, _, port = cluster.address(cluster.workers[index]).rpartition(":")
    return socket.create_server((host, int(port)))


def test_servers_that_accept_are_enough(local_cluster: MakeCluster) -> None:
    cluster = local_cluster(3)
    said: list[str] = []
    with contextlib.ExitStack() as servers:
        for index in range(3):
            servers.enter_context(serve(cluster, index))
        for task in cluster.workers:
            wait_for_servers(cluster, task, timeout_s=5.0, say=said.append)
    assert said == []


def test_ps_and_evaluator_are_not_asked(free_ports: Callable[[int], list[int]]) -> None:
    jobs = {
        job: (f"localhost:{port}",)
        for job, port in zip(("chief", "ps", "evaluator"), free_ports(3), strict=True)
    }
    wait_for_servers(Cluster(jobs=jobs), Task(type="chief", index=0), timeout_s=0.0)


def test_a_server_that_never_answers_is_named(local_cluster: MakeCluster) -> None:
    cluster = local_cluster(3)
    said: list[str] = []
    with serve(cluster, 1), pytest.raises(RendezvousError) as caught:
        wait_for_servers(
            cluster, cluster.workers[0], timeout_s=0.6, report_every_s=0.2, say=said.append
        )
    missing = f"worker 2 ({cluster.address(cluster.workers[2])})"
    message = str(caught.value)
    assert message.startswith(f"{missing} joined, but the TensorFlow server there cannot be reach")
    assert "nothing listens there for 0.6 s" in message
    assert "firewall between the hosts?" in message
    assert said[0].startswith(f"Waiting for the TensorFlow server of {missing}: nothing listens")


def test_a_server_that_starts_late_is_waited_for(local_cluster: MakeCluster) -> None:
    cluster = local_cluster(2)
    has_waited = threading.Event()

    def wait() -> None:
        wait_for_servers(
            cluster,
            cluster.workers[0],
            timeout_s=10.0,
            report_every_s=0.1,
            say=lambda line: has_waited.set(),
        )

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert has_waited.wait(5.0)
    assert waiting.is_alive()
    with serve(cluster, 1):
        waiting.join(10.0)
        assert not waiting.is_alive()


def test_tries_follow_each_other_closely_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: sum(pauses), sleep=pauses.append)
    monkeypatch.setattr(sockets, "time", clock)
    patience = sockets.Patience(limit_s=300.0, report_every_s=5.0)
    for _ in range(30):
        patience.pause()
    assert sum(pauses[:5]) < 0.1
    assert pauses[-1] == max(pauses) == 0.2
