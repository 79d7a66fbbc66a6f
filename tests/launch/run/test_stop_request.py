"""The time that a request to stop leaves the workers."""

import signal

import pytest

from tfdist.launch.run.stop_request import StopRequest

NEVER_S = float("inf")


def test_a_signal_begins_the_grace_period_and_a_second_one_ends_it() -> None:
    assert StopRequest(saves=True).is_made
    stop = StopRequest()
    assert (stop.is_made, stop.kill_at_s) == (False, NEVER_S)
    assert stop.ask(signal.SIGINT, now_s=10, grace_s=30)
    assert (stop.kill_at_s, stop.exit_code) == (40, 130)
    assert not stop.ask(signal.SIGINT, now_s=10.2, grace_s=30)  # A parent forwards it.
    assert stop.kill_at_s == 40
    assert stop.ask(signal.SIGTERM, now_s=12, grace_s=30)
    assert (stop.kill_at_s, stop.exit_code) == (12, 130)
    assert stop.ask(signal.SIGTERM, now_s=13, grace_s=30)
    assert stop.kill_at_s == 12


def test_a_signal_after_another_request_to_stop_is_the_first_one() -> None:
    stop = StopRequest()
    assert stop.ask(signal.SIGTERM, now_s=10, grace_s=30, is_signal=False)
    assert not stop.ask(signal.SIGTERM, now_s=12, grace_s=30)
    assert (stop.kill_at_s, stop.lasts_s(12)) == (40, 2)
    assert stop.ask(signal.SIGTERM, now_s=13, grace_s=30)
    assert stop.kill_at_s == 13


@pytest.mark.parametrize(("number", "after"), [(None, NEVER_S), (signal.SIGTERM, 35)])
def test_the_grace_period_of_a_failure_ends_with_it_and_that_of_a_signal_goes_on(
    number: int | None, after: float
) -> None:
    stop = StopRequest()
    if number is not None:
        stop.ask(number, now_s=5, grace_s=30)
    assert stop.begin_grace(now_s=10, grace_s=30) == (30 if number is None else 25)
    assert stop.begin_grace(now_s=15, grace_s=30) == (25 if number is None else 20)
    assert stop.begin_grace(now_s=50, grace_s=30) == 0
    stop.end_grace()
    assert stop.kill_at_s == after
