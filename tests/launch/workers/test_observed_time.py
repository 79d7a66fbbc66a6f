"""A clock that does not count the time for which its process was suspended."""

from tfdist.launch.workers.channel import SILENCE_S
from tfdist.launch.workers.observed_time import ObservedClock


class Machine:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.time_s = 1000.0

    def __call__(self) -> float:
        return self.time_s


def test_the_clock_follows_the_machines_clock_as_long_as_it_is_read() -> None:
    machine = Machine()
    clock = ObservedClock(machine)
    began_s = clock.now_s()
    for _ in range(60):
        machine.time_s += 0.5
        clock.now_s()
    assert clock.now_s() - began_s == 30.0
    assert clock.absence_before_s(clock.now_s()) == 0.0


def test_a_suspension_counts_briefly_and_explains_only_losses_soon_after_it() -> None:
    machine = Machine()
    clock = ObservedClock(machine)
    before_s = clock.now_s()
    machine.time_s += 3600.0
    after_s = clock.now_s()
    assert after_s - before_s < SILENCE_S / 2
    assert clock.absence_before_s(before_s) == 0.0
    assert clock.absence_before_s(after_s + 0.1) == 3600.0
    assert clock.absence_before_s(after_s + SILENCE_S) == 0.0
    machine.time_s += SILENCE_S / 2  # A short pause explains nothing.
    assert clock.absence_before_s(clock.now_s()) == 0.0
