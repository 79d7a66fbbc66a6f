"""Joining and watching cost as much as there are workers, and not their square: 200 of them."""

import contextlib
import itertools
import random
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tfdist.cluster import Cluster
from tfdist.cluster.rendezvous import meeting
from tfdist.cluster.rendezvous import membership as module
from tfdist.cluster.rendezvous.chief import Gathering
from tfdist.cluster.rendezvous.meeting import wait_for_servers
from tfdist.cluster.rendezvous.membership import Membership
from tfdist.cluster.rendezvous.peer_state import CallClock, PeerState
from tfdist.cluster.rendezvous.protocol import Hello, Member, encode, hello_of
from tfdist.cluster.rendezvous.sockets import Patience
from tfdist.cluster.rendezvous.state_lines import encode_states, parse_states
from tfdist.process.progress_file import in_phase
from tfdist.testing.run import wait_until

COUNT = 200
LIMIT_S = 20.0
MEMBERS = [Member(name=f"worker {index}", address=f"host{index}:1") for index in range(COUNT)]


class Others:
    """The connections of all workers but the chief to it, and the lines that come there."""

    def __init__(self, connections: dict[int, socket.socket]) -> None:
        self.connections = connections
        self.lines: dict[int, list[bytes]] = {index: [] for index in connections}
        self._rest = dict.fromkeys(connections, b"")
        self._selector = selectors.DefaultSelector()
        for index, connection in connections.items():
            connection.setblocking(False)
            self._selector.register(connection, selectors.EVENT_READ, index)

    def read(self, limit_s: float) -> None:
        """Reads what comes within the limit."""
        until_s = time.monotonic() + limit_s
        while (left_s := until_s - time.monotonic()) > 0:
            for key, _ in self._selector.select(left_s):
                data = self.connections[key.data].recv(1 << 16)
                if not data:
                    self._selector.unregister(key.fileobj)
                *lines, self._rest[key.data] = (self._rest[key.data] + data).split(b"\n")
                self.lines[key.data] += lines

    def read_until(self, is_so: Callable[[], bool]) -> None:
        def reads() -> bool:
            self.read(0.02)
            return is_so()

        assert wait_until(reads, LIMIT_S)

    def words(self) -> list[list[bytes]]:
        """Returns the lines of each worker that say something, and forgets them."""
        said = [[line for line in lines if line] for lines in self.lines.values()]
        self.lines = {index: [] for index in self.connections}
        return said

    def close(self) -> None:
        self._selector.close()
        for connection in self.connections.values():
            connection.close()


@pytest.fixture
def connected() -> Iterator[tuple[Others, dict[int, socket.socket]]]:
    """The ends of connections of all others, and those of the chief by index."""
    with socket.create_server(("127.0.0.1", 0), backlog=COUNT) as listener:
        theirs, ours = {}, {}
        for index in range(1, COUNT):
            theirs[index] = socket.create_connection(listener.getsockname())
            ours[index] = listener.accept()[0]
    others = Others(theirs)
    yield others, ours
    others.close()


def test_a_worker_that_joins_gets_a_few_lines_however_many_join_after_it() -> None:
    with contextlib.ExitStack() as closing:
        listener = closing.enter_context(socket.create_server(("127.0.0.1", 0), backlog=COUNT))
        chief = Gathering(MEMBERS, [listener], Patience(LIMIT_S))
        running = threading.Thread(target=lambda: joined.update(chief.run()))
        joined: dict[int, socket.socket] = {}
        others = Others(
            {i: socket.create_connection(listener.getsockname()) for i in range(1, COUNT)}
        )
        closing.callback(others.close)
        began_s = time.monotonic()
        running.start()
        for index, connection in others.connections.items():
            hello = hello_of(MEMBERS, index, process=f"{index}")
            connection.sendall(encode(Hello(**{**vars(hello), "members": ()})))
        others.read_until(
            lambda: all(b'"go"' in (lines or [b""])[-1] for lines in others.lines.values())
        )
        running.join(LIMIT_S)
        passed_s = time.monotonic() - began_s
        assert sorted(joined) == list(range(1, COUNT))
        for connection in joined.values():
            connection.close()
        said = others.words()
    assert max(map(len, said)) <= 2 + 1 + passed_s / 1.0  # The first answer, "go", and the news.
    assert max(len(line) for lines in said for line in lines) < 500


def test_a_hello_is_as_short_among_many_workers() -> None:
    def length(count: int) -> int:
        hello = hello_of(MEMBERS[:count], 1, process="p")
        return len(encode(Hello(**{**vars(hello), "members": ()})))

    assert length(2) == length(COUNT) < 500


def test_watching_many_workers_sends_what_has_changed_and_beats(
    connected: tuple[Others, dict[int, socket.socket]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BEAT_S", 0.1)
    others, ours = connected
    with contextlib.closing(Membership(MEMBERS, 0, ours)) as chief:

        def say(index: int, state: PeerState) -> None:
            others.connections[index].sendall(encode_states({index: state}))

        for index in others.connections:
            say(index, PeerState(phase="training", moves=True))
        others.read_until(lambda: all(s.moves for s in chief.states().values()))
        others.read(0.8)
        others.words()
        # Nothing changes, then the state of one.
        others.read(1.0)
        assert others.words() == [[]] * (COUNT - 1)
        say(7, PeerState(phase="training", waits=True, since_s=5.0))
        others.read_until(lambda: all(any(lines) for lines in others.lines.values()))
        others.read(0.3)
        for said in others.words():
            (line,) = said
            assert len(line) < 400
            states = parse_states(line, COUNT)
            assert len(states) == COUNT
            assert [index for index, one in states.items() if one.waits] == [7]
        # A worker is lost.
        began_s = time.monotonic()
        others.connections[9].shutdown(socket.SHUT_RDWR)
        rest = [index for index in others.connections if index != 9]
        others.read_until(lambda: all(any(others.lines[index]) for index in rest))
        assert time.monotonic() - began_s < 2.0
        for index in rest:
            last = [line for line in others.lines[index] if line][-1]
            assert parse_states(last, COUNT)[9].lost == "its process has ended"


def test_many_workers_that_leave_one_after_the_other_do_not_cost_a_line_to_all_for_each(
    connected: tuple[Others, dict[int, socket.socket]],
) -> None:
    others, ours = connected
    with contextlib.closing(Membership(MEMBERS, 0, ours)):
        for index, connection in others.connections.items():
            connection.sendall(encode_states({index: PeerState(farewells=0)}))
        others.read_until(lambda: all(any(lines) for lines in others.lines.values()))
        others.words()
        began_s = time.monotonic()
        for index, connection in others.connections.items():
            connection.sendall(encode_states({index: PeerState(farewells=1)}))
            others.read(0.002)
        others.read(0.2)
        passed_s = time.monotonic() - began_s
        assert max(map(len, others.words())) <= 5 + passed_s


def test_steps_that_go_on_cost_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BEAT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    others = Others({0: theirs})
    with contextlib.closing(Membership(MEMBERS, 1, {0: ours})) as worker, in_phase("training"):
        worker.calls = CallClock()
        for _ in range(100):
            worker.calls.begin()
            others.read(0.01)
            worker.calls.end()
        (said,) = others.words()
        states = [parse_states(line, COUNT)[1] for line in said]
        assert [state.moves for state in states[-1:]] == [True]
        assert len(said) <= 5  # At the start, of the phase, and where this machine stalls.
        worker.calls.begin()  # A long one.
        others.read_until(lambda: any(b'"waits":true' in line for line in others.lines[0]))
    others.close()


def test_states_of_many_workers_read_back_and_equal_ones_stand_there_once() -> None:
    kinds = [
        PeerState(phase="training", moves=True),
        PeerState(phase="training", waits=True, since_s=40.0),
        PeerState(phase="saving", farewells=3, failure="ValueError: no"),
    ]
    dice = random.Random(1)
    for share in (0.0, 0.1, 0.9):
        states = {i: kinds[int(dice.random() < share) * dice.randrange(3)] for i in range(1024)}
        assert parse_states(encode_states(states), 1024) == states
    assert len(encode_states(dict.fromkeys(range(1024), kinds[1]))) < 100
    assert set(parse_states(encode_states(states), 8)) == set(range(8))


@pytest.mark.parametrize("numbers", ["1-0", "3,2", "0-5,5", "1,,2", "-", "", "0-9999999", "a"])
def test_numbers_that_do_not_rise_are_refused(numbers: str) -> None:
    assert parse_states(f'{{"{numbers}":{{"phase":"training"}}}}'.encode(), 8) == {}


def test_every_server_is_receivers_and_the_connections_grow_with_the_workers() -> None:
    for count in (2, 8, 9, 200):
        receivers = [meeting._receivers(own, count) for own in range(count)]
        assert set(itertools.chain(*receivers)) == set(range(count))
        assert not any(own in others for own, others in enumerate(receivers))
        assert sum(map(len, receivers)) <= max(8 * 7, 3 * count)
    assert meeting._receivers(0, 3) == [1, 2]


def test_a_server_of_many_that_does_not_listen_is_named_by_its_neighbours() -> None:
    with contextlib.ExitStack() as closing:
        servers = [closing.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(12)]
        addresses = tuple(f"127.0.0.1:{one.getsockname()[1]}" for one in servers)
        cluster = Cluster(jobs={"worker": addresses})
        servers[5].close()
        for index in (0, 3, 7, 11):
            wait_for_servers(cluster, cluster.workers[index], timeout_s=5.0)
        for index in (4, 6):
            with pytest.raises(meeting.AbsentWorkerError, match="worker 5"):
                wait_for_servers(cluster, cluster.workers[index], timeout_s=0.0)
