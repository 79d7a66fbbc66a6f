"""Programs without tfdist under `tfdist run`: their output, the worker to blame, restarts."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forking_launcher import FORKING_LAUNCHER

from tfdist.launch.machine.mpi import horovod_problem
from tfdist.testing import FakeCluster

PROGRAMS = Path(__file__).parents[2] / "programs"
needs_horovod = pytest.mark.skipif(horovod_problem() is not None, reason=str(horovod_problem()))


@needs_horovod
def test_a_plain_horovod_script_is_started_again_after_a_ranks_error(
    launch: Callable[..., Any], tmp_path: Path
) -> None:
    command = [sys.executable, str(PROGRAMS / "stock_horovod.py"), str(tmp_path), "1"]
    run = launch(command, "--engine", "horovod", "--max-restarts", "1")
    assert run.wait(120.0) == 0
    assert "restart 1 of 1: worker 1 failed (exit code 1)" in run.err
    assert "ValueError: no such file: part-7" in run.log("worker-1")
    ends = re.findall(r"\[\d\] rank (\d) of 2 from epoch 2: (\S+)", run.out)
    assert sorted(rank for rank, _ in ends) == ["0", "1"]
    assert ends[0][1] == ends[1][1]


def test_the_worker_of_a_stock_strategy_that_fails_is_blamed(
    fake_cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    program = ("--", sys.executable, str(PROGRAMS / "stock_mirrored.py"), "1")
    words = [FORKING_LAUNCHER, "run", "--num-instances", "2", "--log-dir", "logs", *program]
    with fake_cluster.start_script(words, engine="none", forked=True) as script:
        launcher = script.workers[0]
        assert launcher.wait(120.0) == 1, launcher.text()
        shown = launcher.text()
    assert "worker 1 failed first" in shown
    assert "ValueError: no such file: part-7" in shown
    sums = dict(re.findall(r"worker (\d), epoch 0: (\S+)", shown))
    assert sums["0"] == sums["1"]
