"""Saving and evaluating by seconds does not depend on the time of day."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tfdist.estimator.graph.steady_timer import SteadyTimer


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Iterator[float]:
    """A clock that moves on by 100 s with each look at it; the day's time goes back by an hour."""
    clock, day = count(0.0, 100.0), count(1e9, -3600.0)
    monkeypatch.setattr("tfdist.estimator.graph.steady_timer.monotonic", lambda: next(clock))
    monkeypatch.setattr("time.time", lambda: next(day))
    return clock


def test_a_timer_triggers_after_its_seconds(looks: Iterator[float]) -> None:
    timer = SteadyTimer(every_secs=150)
    assert timer.should_trigger_for_step(1)
    assert timer.update_last_triggered_step(1) == (None, None)  # At 0 s.
    assert [timer.should_trigger_for_step(step) for step in (2, 2, 1)] == [False, True, False]
    assert timer.update_last_triggered_step(4) == (400.0, 3)
    timer.reset()
    assert timer.should_trigger_for_step(4)


def test_a_training_saves_by_seconds(
    make: Any, numbers: Any, saved_steps: Any, tmp_path: Path, looks: Iterator[float]
) -> None:
    make(save_checkpoints_secs=150, keep_checkpoint_max=None).train(numbers(), steps=6)
    assert len(saved_steps(tmp_path)) > 3  # Not only the first and the last step.
