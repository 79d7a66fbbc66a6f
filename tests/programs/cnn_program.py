"""Runs of examples/cnn/train.py, and the tables that they write."""

import csv
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from script_run import run_script

from tfdist.testing.run import wait_until

EXAMPLES = Path(__file__).parents[2] / "examples"
TRAIN, VALIDATE = str(EXAMPLES / "cnn" / "train.py"), str(EXAMPLES / "cnn" / "validation.py")

# Five steps on one batch, whose losses do not depend on how it is divided.
SMALL = ["--generated-data", "--iterations", "5", "--log-freq", "1", "--abs-learning-rate", "0.05"]
NAMES = ("step", "lr", "loss", "accuracy")  # Columns without the times.
NORMS = {"group": ["--group-norm"], "batch": ["--BN-span", "all"]}


def run_all(script: str, option_lists: list[list[str]]) -> list[str]:
    """Runs a script several times in turn in this process; returns what each run printed."""
    return [run_script([script, *options]) for options in option_lists]


def train_and_die(options: list[str], at_step: int) -> None:
    """Trains until a step, behind which the process is killed.

    The checkpoint of the step before is on the disk then.
    """
    sys.path[:0] = [str(EXAMPLES / "cnn"), str(EXAMPLES / "application")]
    import run_log

    report = run_log.LogHook.after_run

    def report_and_die(hook: Any, *arguments: Any) -> None:
        report(hook, *arguments)
        if hook._step == at_step:
            [run] = Path(options[options.index("--log-dir") + 1]).iterdir()
            newest = f"-{at_step - 1}"
            latest = tf.train.latest_checkpoint
            assert wait_until(lambda: (latest(run) or "").endswith(newest), 30.0)
            os.kill(os.getpid(), signal.SIGKILL)

    run_log.LogHook.after_run = report_and_die
    run_script([TRAIN, *options])


def read_rows(
    folder: Path, table: str = "training", names: Sequence[str] = NAMES
) -> list[dict[str, float]]:
    """Returns columns of a table of the only run in a folder of runs."""
    [path] = folder.glob(f"*/{table}.csv")
    with open(path, encoding="utf-8") as file:
        found = list(csv.DictReader(file))
    return [{name: float(row[name]) for name in names} for row in found]


def assert_equal(some: list[dict[str, float]], others: list[dict[str, float]]) -> None:
    """Compares the rows of two trainings."""
    assert len(some) == len(others) > 0
    for one, other in zip(some, others, strict=True):
        assert one == pytest.approx(other, rel=1e-5)
