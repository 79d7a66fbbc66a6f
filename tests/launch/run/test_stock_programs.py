"""Programs without tfdist under `tfdist run`: their output, and the worker to blame."""

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
def test_the_rank_of_a_plain_horovod_script_that_fails_is_blamed(
    launch: Callable[..., Any],
) -> None:
    run = launch([sys.executable, str(PROGRAMS / "stock_horovod.py")], "--engine", "horovod")
    assert run.wait(120.0) == 1
    assert "worker 1 failed first" in run.err
    assert "ValueError: no such file: part-7" in run.log("worker-1")
    sums = dict(re.findall(r"rank (\d) of 2: (\S+)", run.out))
    assert sums["0"] == sums["1"]


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
