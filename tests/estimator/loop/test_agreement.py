"""The decisions that all workers read from the sums of a step."""

import signal
from collections.abc import Sequence

import numpy as np
import pytest

from tfdist.estimator.loop.agreement import Agreed, read_sums
from tfdist.strategies.stop_signals import StopOrder, requests_of


def _sums(*workers: Sequence[float]) -> np.ndarray:
    """Adds [loss, weight, has_more, stop, save, SIGTERM, SIGUSR1, index, *metrics] of workers."""
    return np.sum(np.asarray(workers, np.float32), axis=0)


def _worker(
    has_more: float = 1, stop: float = 0, save: float = 0, number: int | None = None, index: int = 0
) -> list[float]:
    return [0.5, 1.0, has_more, stop, save, *requests_of(number, index), 7.0]


TERM, USR1 = signal.SIGTERM, signal.SIGUSR1


@pytest.mark.parametrize(
    ("second", "agreed", "ends"),
    [
        (_worker(), Agreed(), False),
        (_worker(has_more=0), Agreed(num_ended=1), True),
        (_worker(stop=1), Agreed(stop=True), True),
        (_worker(save=1), Agreed(save=True), False),
        (_worker(number=USR1, index=1), Agreed(order=StopOrder(number=USR1, receiver=1)), True),
        (_worker(number=TERM, index=1), Agreed(order=StopOrder(number=TERM, receiver=1)), True),
    ],
)
def test_one_workers_request_becomes_the_decision_of_all(
    second: list[float], agreed: Agreed, ends: bool
) -> None:
    decided = read_sums(_sums(_worker(), second), num_workers=2)
    assert decided == agreed
    assert decided.ends_training == ends


def test_sigterm_of_one_worker_wins_over_sigusr1_of_another() -> None:
    sums = _sums(_worker(number=USR1, index=0), _worker(number=TERM, index=1))
    order = read_sums(sums, num_workers=2).order
    assert order is not None
    assert (order.number, order.receivers) == (TERM, 2)


def test_requests_of_several_workers_count_once_and_ended_inputs_are_counted() -> None:
    worker = _worker(has_more=0, stop=1, save=1)
    decided = read_sums(_sums(worker, worker, _worker()), num_workers=3)
    assert decided == Agreed(num_ended=2, stop=True, save=True)
