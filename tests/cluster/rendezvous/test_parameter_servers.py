"""A ps task without variables waits for the chief, and tells its end from its loss."""

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from tfdist.cluster import Cluster, RendezvousError, Task
from tfdist.cluster.rendezvous import parameter_servers
from tfdist.cluster.rendezvous.parameter_servers import ChiefNotice, wait_for_chief
from tfdist.cluster.rendezvous.sockets import connect
from tfdist.process import endings
from tfdist.testing.run import wait_until

PS = Task(type="ps", index=0)


class Waiting(threading.Thread):
    """A ps task in a thread: what it says, and the error that ends it."""

    def __init__(self, cluster: Cluster, timeout_s: float) -> None:
        super().__init__(daemon=True)
        self.said: list[str] = []
        self.error: Exception | None = None
        self._wait = lambda: wait_for_chief(cluster, PS, timeout_s=timeout_s, say=self.say)
        self._has_said = threading.Condition()

    def say(self, line: str) -> None:
        with self._has_said:
            self.said.append(line)
            self._has_said.notify_all()

    def run(self) -> None:
        try:
            self._wait()
        except Exception as error:
            self.error = error

    def lines(self, count: int) -> list[str]:
        """Returns the first lines, as soon as there are so many."""
        with self._has_said:
            assert self._has_said.wait_for(lambda: len(self.said) >= count, 10)
            return self.said[:count]


@pytest.fixture
def cluster(free_ports: Callable[[int], list[int]]) -> Cluster:
    chief, ps = (f"localhost:{port}" for port in free_ports(2))
    return Cluster(jobs={"chief": (chief,), "ps": (ps,)})


@pytest.fixture
def start(cluster: Cluster) -> Iterator[Callable[..., Waiting]]:
    """Starts a ps task that listens when this returns."""
    started: list[Waiting] = []

    def start(timeout_s: float = 10.0) -> Waiting:
        task = Waiting(cluster, timeout_s)
        task.start()
        started.append(task)
        task.lines(1)
        return task

    yield start
    for task in started:
        task.join(10)
        assert not task.is_alive()


def _notice(cluster: Cluster) -> ChiefNotice:
    return ChiefNotice(cluster.without_parameter_servers(), cluster.jobs["ps"])


def test_it_ends_when_the_chief_ends_without_an_error(
    cluster: Cluster, start: Callable[..., Waiting]
) -> None:
    task = start()
    _notice(cluster).close()
    first, last = task.lines(2)
    assert "holds no variables" in first and first.endswith(
        "until chief (" + (f"{cluster.jobs['chief'][0]}) is done.")
    )
    assert last.endswith("is done: ps 0 ends.")
    task.join(10)
    assert task.error is None


def test_after_a_lost_chief_it_waits_for_the_next_one(
    cluster: Cluster, start: Callable[..., Waiting], monkeypatch: pytest.MonkeyPatch
) -> None:
    task = start()
    monkeypatch.setattr(endings, "ending_error", lambda: ValueError("of the program"))
    _notice(cluster).close()
    assert task.lines(2)[1].startswith("Lost chief (")
    monkeypatch.undo()
    _notice(cluster).close()
    assert task.lines(3)[2].endswith("is done: ps 0 ends.")


def test_it_gives_up_without_a_chief_and_says_what_to_do(start: Callable[..., Waiting]) -> None:
    task = start(0.2)
    task.join(10)
    assert "did not come within 0.2 s" in str(task.error)
    assert "TFDIST_START_TIMEOUT_S" in str(task.error)


def test_a_stranger_that_sends_a_byte_now_and_then_does_not_keep_it(
    cluster: Cluster, start: Callable[..., Waiting], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parameter_servers, "HELLO_LIMIT_S", 0.2)
    task = start()
    with connect(cluster.jobs["ps"][0]) as stranger:

        def is_cut_off() -> bool:
            try:
                stranger.sendall(b"x")
            except OSError:
                return True
            return False

        assert wait_until(is_cut_off, 5)
    _notice(cluster).close()
    assert task.lines(2)[1].endswith("is done: ps 0 ends.")


def test_another_cluster_is_refused_and_other_programs_are_ignored(
    cluster: Cluster, start: Callable[..., Waiting]
) -> None:
    task = start()
    for words in (b"GET / HTTP/1.1\n", b""):
        with connect(cluster.jobs["ps"][0]) as stranger:
            stranger.sendall(words)
            stranger.shutdown(socket.SHUT_WR)
            assert stranger.recv(1) == b""
    other = Cluster(jobs={"chief": cluster.jobs["chief"], "worker": ("localhost:1",)})
    ChiefNotice(other, cluster.jobs["ps"]).close()
    task.join(10)
    assert isinstance(task.error, RendezvousError)
    assert "started with another cluster" in str(task.error)
