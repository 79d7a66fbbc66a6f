"""ProgressBarHook: one line on a terminal, of one worker, and not under the launcher."""

import io
from collections.abc import Callable
from typing import Any

import pytest

from tfdist.monitoring import ProgressBarHook

Train = Callable[..., Any]


def test_the_bar_goes_from_the_first_step_to_the_last_with_the_loss(train: Train) -> None:
    shown = io.StringIO()
    train([ProgressBarHook(5, ["loss", "half"], every_n_steps=2, file=shown)], steps=5)
    last = shown.getvalue().rstrip("\n").rpartition("\r")[2]
    assert last.startswith("100%")
    assert "5/5" in last
    assert "half=20, loss=40" in last or "loss=40, half=20" in last  # Of step 4, the newest.

    resumed = io.StringIO()
    train([ProgressBarHook(8, every_n_steps=1, file=resumed)], steps=3)
    lines = resumed.getvalue().strip().split("\r")
    assert "5/8" in lines[0]
    assert "8/8" in lines[-1]


def test_other_workers_and_workers_of_the_launcher_show_nothing(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("own_worker_index", "is_launched"):
        with monkeypatch.context() as changed:
            changed.setattr(f"tfdist.monitoring.progress_bar.{name}", lambda: 1)
            shown = io.StringIO()
            train([ProgressBarHook(9, every_n_steps=1, file=shown)], steps=1)
            assert shown.getvalue() == ""
