"""CsvMetricsHook: a table of scalars by step."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tfdist.monitoring import CsvMetricsHook

Train = Callable[..., Any]


def test_rows_are_written_at_multiples_of_the_interval(train: Train, tmp_path: Path) -> None:
    path = tmp_path / "new" / "metrics.csv"
    train([CsvMetricsHook(path, ["loss", "half"], every_n_steps=2)], steps=5)
    assert path.read_text().splitlines() == ["step,loss,half", "2,20.0,10.0", "4,40.0,20.0"]


def test_a_resumed_training_goes_on_as_an_unbroken_one(train: Train, tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    for steps in (3, 3, 1):
        train([CsvMetricsHook(path, every_n_steps=2)], steps=steps)
    assert path.read_text().splitlines() == ["step,loss", "2,20.0", "4,40.0", "6,60.0"]


def test_steps_that_are_made_again_replace_those_of_the_run_that_broke(
    train: Train, tmp_path: Path, logged: list[str]
) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("step,loss\n1,1.0\n2,1.0\n3,1.0\n4,")
    train([], steps=2)
    train([CsvMetricsHook(path, every_n_steps=1)], steps=2)
    assert path.read_text().splitlines() == [
        "step,loss", "1,1.0", "2,1.0", "3,30.0", "4,40.0"
    ]  # fmt: skip
    assert any("2 row(s) of steps after 2 are dropped" in line for line in logged)
    assert list(tmp_path.glob("*.new")) == []


def test_a_row_whose_end_was_not_written_is_dropped(train: Train, tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("step,loss\n1,10.0\n2,2")  # of 20.0
    train([], steps=2)
    train([CsvMetricsHook(path, every_n_steps=1)], steps=1)
    assert path.read_text().splitlines() == ["step,loss", "1,10.0", "3,30.0"]


def test_a_loop_of_steps_writes_a_row_after_the_call_that_reaches_a_multiple(
    train: Train, tmp_path: Path
) -> None:
    path = tmp_path / "metrics.csv"
    train([CsvMetricsHook(path, every_n_steps=4)], steps=12, iterations=3)
    rows = path.read_text().splitlines()[1:]
    # The loss of a call is the mean over its three steps.
    assert rows == ["6,50.0", "9,80.0", "12,110.0"]


def test_a_file_with_other_columns_is_left_alone(train: Train, tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("epoch,loss\n1,2\n")
    with pytest.raises(ValueError, match=r"has the columns epoch, loss, and the hook writes step"):
        train([CsvMetricsHook(path)])
    assert path.read_text() == "epoch,loss\n1,2\n"


def test_only_worker_0_writes(
    train: Train, tmp_path: Path, as_second_worker: AbstractContextManager[None]
) -> None:
    path = tmp_path / "metrics.csv"
    with as_second_worker:
        hook = CsvMetricsHook(path, every_n_steps=1)
    train([hook], steps=2)
    assert not path.exists()
