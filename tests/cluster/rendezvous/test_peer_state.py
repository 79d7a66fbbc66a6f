"""The lines about the workers that a worker waits for."""

import pytest

from tfdist.cluster.rendezvous.peer_state import (
    PeerState,
    WaitReport,
    describe_wait,
    stalled_workers,
    waits_for,
)
from tfdist.cluster.rendezvous.protocol import Member
from tfdist.cluster.rendezvous.state_lines import encode_states, parse_states

MEMBERS = [Member(name=f"worker {i}", address=f"host{i}:1") for i in range(4)]

IN_CALL = PeerState(phase="training", waits=True, since_s=40.0)
WAITS = PeerState(phase="waiting", waits=True, since_s=40.0)
IN_PYTHON = PeerState(phase="training", since_s=39.0)
SAVES = PeerState(phase="saving", since_s=38.0)
SILENT = PeerState(phase="training", waits=True, silent_s=33.0)
ENDED = PeerState(lost="its process has ended")


def test_states_arrive_as_they_were_sent_with_one_printable_short_line_for_each_text() -> None:
    states = {1: IN_CALL, 3: PeerState(failure="ValueError: no", farewells=2, lost="gone")}
    assert parse_states(encode_states(states), 4) == states
    sent = PeerState(failure="bad \x1b[31m value\nsecond line", lost="x" * 5000)
    got = parse_states(encode_states({1: sent}), 4)[1]
    assert (got.failure, got.lost) == ("bad ?[31m value", "x" * 300)


@pytest.mark.parametrize("line", [b"", b"{", b"[1]", b"{}", b'{"1": {}}', b'{"1": 3}', b"\xff"])
def test_a_line_of_another_program_has_no_states(line: bytes) -> None:
    assert parse_states(line, 4) == {}


@pytest.mark.parametrize(
    ("states", "late"),
    [
        ({1: IN_CALL, 2: WAITS}, []),
        ({1: IN_CALL, 2: IN_PYTHON}, [2]),
        ({1: SAVES, 2: IN_PYTHON}, [1, 2]),
        ({1: SILENT, 2: IN_PYTHON}, [1]),  # the other one may wait for the silent one
        ({1: ENDED, 2: IN_CALL}, []),
    ],
)
def test_the_others_wait_for_the_silent_workers_or_for_those_outside_of_a_call(
    states: dict[int, PeerState], late: list[int]
) -> None:
    assert waits_for(states) == late


@pytest.mark.parametrize(
    ("states", "line"),
    [
        (
            {1: SILENT},
            "Waiting for worker 1 (host1:1), 40 s: it has not answered for 33 s: its process is "
            "stopped (SIGSTOP, a debugger), or its host hangs.",
        ),
        (
            {1: IN_CALL, 2: SAVES},
            "Waiting for worker 2 (host2:1), 40 s: it is saving a checkpoint, for 38 s now.",
        ),
        (
            {1: IN_PYTHON, 2: SAVES},
            "Waiting for worker 1 (host1:1) and worker 2 (host2:1), 40 s: the first is in Python "
            "code outside of a session call (a hook?), for 39 s now.",
        ),
        (
            {1: IN_CALL},
            "No worker has finished this session call for 40 s: one of them waits for its input, "
            "or a device hangs.",
        ),
    ],
)
def test_the_line_names_the_late_workers_and_what_they_do(
    states: dict[int, PeerState], line: str
) -> None:
    assert describe_wait(states, MEMBERS, 40.0) == line


def test_a_wait_is_reported_every_30_seconds_and_anew_after_its_end() -> None:
    report = WaitReport()

    def lines(*since_s: float) -> list[bool]:
        states = (PeerState(phase="waiting", waits=True, since_s=s) for s in since_s)
        return [bool(report.next_line(own, {1: SAVES}, MEMBERS, 0.0)) for own in states]

    assert lines(29.0, 30.5, 31.0, 60.0, 61.0) == [False, True, False, False, True]
    assert lines(1.0, 31.0) == [False, True]


@pytest.mark.parametrize(("usual_s", "is_reported"), [(0.0, False), (10.0, False), (3.0, True)])
def test_a_call_that_lasts_long_on_all_workers_is_reported_if_it_is_unusual(
    usual_s: float, is_reported: bool
) -> None:
    line = WaitReport().next_line(IN_CALL, {1: IN_CALL}, MEMBERS, usual_s)
    assert bool(line) == is_reported


@pytest.mark.parametrize(
    ("own", "others", "stalled"),
    [
        (WAITS, {1: IN_PYTHON}, [1]),
        (WAITS, {1: SILENT, 2: SAVES}, [1]),
        (WAITS, {1: SAVES}, None),  # work takes the time that it needs
        (WAITS, {1: SAVES, 2: IN_PYTHON}, None),
        (IN_CALL, {1: IN_CALL}, []),
        (IN_PYTHON, {1: IN_CALL}, None),
    ],
)
def test_the_limit_of_a_stall_is_for_workers_without_work(
    own: PeerState, others: dict[int, PeerState], stalled: list[int] | None
) -> None:
    assert stalled_workers(own, others, 40.0) == stalled
    assert stalled_workers(own, others, 41.0) is None
