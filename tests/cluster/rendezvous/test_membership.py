"""Workers learn over their connections who has ended, who is late, and when all may leave."""

import socket
import threading
from collections.abc import Callable

import pytest

from tfdist.cluster.rendezvous import membership as module
from tfdist.cluster.rendezvous import peer_state, sockets
from tfdist.cluster.rendezvous.membership import Loss, Membership
from tfdist.cluster.rendezvous.peer_state import CallClock, PeerState
from tfdist.cluster.rendezvous.state_lines import encode_states
from tfdist.process.progress_file import in_phase
from tfdist.testing.run import wait_until

LIMIT_S = 20.0

Make = Callable[[int], list[Membership]]


@pytest.fixture(autouse=True)
def quick_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BEAT_S", 0.05)


class News:
    def __init__(self, of: Membership) -> None:
        self._losses: list[Loss] = []
        self._come = threading.Semaphore(0)
        of.add_listener(self._take)

    def _take(self, loss: Loss) -> None:
        self._losses.append(loss)
        self._come.release()

    def first(self) -> Loss:
        assert self._come.acquire(timeout=LIMIT_S)
        return self._losses[0]


def leave(membership: Membership) -> threading.Thread:
    thread = threading.Thread(target=membership.leave_together, daemon=True)
    thread.start()
    return thread


def check_ended(*threads: threading.Thread) -> None:
    for thread in threads:
        thread.join(LIMIT_S)
    assert not any(thread.is_alive() for thread in threads)


def until(is_so: Callable[[], bool]) -> None:
    assert wait_until(is_so, LIMIT_S)


@pytest.mark.parametrize("lost", [0, 2])
def test_all_workers_learn_of_one_that_has_ended(make_memberships: Make, lost: int) -> None:
    workers = make_memberships(3)
    until(lambda: all(link.has_spoken for link in workers[0]._links.values()))
    news = [News(one) for index, one in enumerate(workers) if index != lost]
    workers[lost].close()
    assert [one.first() for one in news] == [
        Loss(
            index=lost,
            line=f"Lost worker {lost} (host{lost}:1) while training: its process has ended. "
            "See its output for the cause.",
        )
    ] * 2


def test_a_loss_before_the_watch_counts_as_well(make_memberships: Make) -> None:
    chief, other = make_memberships(2)
    other.close()
    until(lambda: bool(chief.states()[1].lost))
    assert News(chief).first().index == 1


def test_all_workers_learn_of_a_training_that_has_failed(make_memberships: Make) -> None:
    chief, one, other = make_memberships(3)
    news = [News(chief), News(one)]
    other.set_failure("ValueError: no")
    assert [loss.first().is_failure for loss in news] == [True, True]
    assert "its training has failed: ValueError: no." in news[1].first().line


def test_a_worker_is_asked_who_has_gone_and_waits_for_the_news(make_memberships: Make) -> None:
    chief, one, other = make_memberships(3)
    assert one.find_loss(0.0) is None
    requested = threading.Timer(0.2, other.set_failure, ("ValueError: no",))
    requested.start()
    loss = one.find_loss(LIMIT_S)
    assert loss is not None and loss.index == 2
    assert "its training has failed: ValueError: no." in loss.line
    other.close()  # The failure says more than the end of the process.
    until(lambda: bool(chief.states()[2].lost))
    assert chief.find_loss(0.0) == loss
    requested.join()


def test_no_worker_leaves_a_training_before_all_others(make_memberships: Make) -> None:
    workers = make_memberships(3)
    leaving = [leave(one) for one in workers[:2]]
    until(lambda: workers[0].states()[1].farewells == workers[1].states()[0].farewells == 1)
    assert all(thread.is_alive() for thread in leaving)
    leaving.append(leave(workers[2]))
    check_ended(*leaving)


@pytest.mark.parametrize("lost", [0, 2])
def test_a_lost_worker_is_not_waited_for_at_the_end(make_memberships: Make, lost: int) -> None:
    workers = make_memberships(3)
    leaving = [leave(one) for index, one in enumerate(workers) if index != lost]
    workers[lost].close()
    check_ended(*leaving)


def test_a_silent_worker_is_not_waited_for_at_the_end(
    make_memberships: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    chief, other = make_memberships(2)
    until(lambda: all(link.has_spoken for link in chief._links.values()))
    monkeypatch.setattr(peer_state, "SILENT_AFTER_S", 0.3)
    monkeypatch.setattr(other, "_send_states", lambda is_urgent: None)
    check_ended(leave(chief))


def test_a_wait_is_reported_and_ends_after_the_limit(
    make_memberships: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_state, "REPORT_EVERY_S", 0.1)
    chief, _ = make_memberships(2)
    # Both are this process, whose phase is "training": the clock of the calls tells them apart.
    lines: list[str] = []
    chief.on_line = lines.append
    chief.calls = CallClock()
    with in_phase("training"):
        chief.calls.begin()
        until(lambda: len(lines) > 1)
        news = News(chief)
        chief.stall_timeout_s = 0.2
        stalled = news.first()
    assert lines[0].startswith("Waiting for worker 1 (host1:1), 0 s: it is in Python code")
    assert stalled.index == 1
    assert stalled.line.endswith("That is longer than TFDIST_STALL_TIMEOUT_S=0.2.")


def test_what_another_program_sends_changes_nothing(make_memberships: Make) -> None:
    chief, other = make_memberships(2)
    other._links[0].connection.send(b'garbage\n{"0": 1}\n{"9": {}}\n\xff\xfe\n')
    state = encode_states({1: PeerState(farewells=7)})
    for number in (b"Infinity", b"NaN", b"1e999"):  # The thread that reads them goes on.
        other._links[0].connection.send(state.replace(b"7", number))
    nonsense = PeerState(failure="ValueError: no", lost="its process has ended")
    other._links[0].connection.send(encode_states({0: nonsense, 9: nonsense}))
    leaving = [leave(chief), leave(other)]
    check_ended(*leaving)


def test_a_connection_tries_each_second_whether_the_other_host_is_back() -> None:
    tcp = socket.IPPROTO_TCP
    with socket.socket() as connection:
        try:
            connection.getsockopt(tcp, sockets._TCP_RTO_MAX_MS)
        except OSError:
            pytest.skip("needs Linux 6.15 or later")
        sockets.end_with_host(connection)
        assert connection.getsockopt(tcp, sockets._TCP_RTO_MAX_MS) == 1000
        assert connection.getsockopt(tcp, socket.TCP_USER_TIMEOUT) == 20_000
