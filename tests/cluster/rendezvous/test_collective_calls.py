"""Workers whose programs differ are found; one that is only behind is not taken for such."""

import pytest

from tfdist.cluster.rendezvous.collective_calls import (
    END,
    STOP,
    CollectiveCalls,
    describe_difference,
    find_other_program,
)
from tfdist.cluster.rendezvous.peer_state import PeerState


def waits(call: str, number: int, *, since_s: float = 9.0, **facts: object) -> PeerState:
    return PeerState(waits=True, call=call, number=number, since_s=since_s, **facts)  # type: ignore[arg-type]


@pytest.fixture
def calls() -> CollectiveCalls:
    """The calls of a worker that has made three, and is in the last one."""
    made = CollectiveCalls()
    for kind in ("step of fit", "step of fit", "evaluate"):
        made.kind = ""
        made.running(kind).__enter__()
    return made


@pytest.mark.parametrize(
    ("other", "is_found"),
    [
        (waits("step of fit", 3), True),
        (waits(END, 3), True),
        (waits("predict", 2), True),
        (waits("evaluate", 3), False),
        (waits("step of fit", 2), False),  # It is behind, and will come.
        (waits("step of fit", 4), False),  # It is ahead, and compares them itself.
        (waits("step of fit", 3, since_s=1.0), False),
        (waits("step of fit", 3, silent_s=20.0), False),
        (waits("step of fit", 3, lost="its process has ended"), False),
        (waits(STOP, 3), False),  # It gets an answer, and goes on.
        (PeerState(number=3, since_s=9.0), False),
    ],
)
def test_a_worker_in_a_call_that_this_one_did_not_make_is_found(
    calls: CollectiveCalls, other: PeerState, is_found: bool
) -> None:
    own = waits("evaluate", 3)
    found = find_other_program(own, {1: other}, calls.kind_at)
    assert found == (1 if is_found else None)


def test_the_line_names_both_places_in_the_order_of_the_workers() -> None:
    place = "step 3 of epoch 1 of fit (train.py:7)"
    line = describe_difference({4: waits(END, 3), 1: waits("step of fit", 3, place=place)})
    assert line.startswith(f"worker 1 is in {place}, worker 4 has ended its program, and neither")


def test_a_call_within_another_is_a_part_of_it_and_one_taken_back_does_not_count() -> None:
    calls = CollectiveCalls()
    with calls.running("the end of fit"), calls.running("evaluate"):
        assert (calls.kind, calls.number) == ("the end of fit", 1)
    with calls.running(STOP):
        pass
    calls.take_back()
    assert (calls.kind, calls.number, calls.kind_at(1)) == ("", 1, "the end of fit")
