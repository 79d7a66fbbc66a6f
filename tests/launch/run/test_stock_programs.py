"""Programs without tfdist under `tfdist run`: their output, and the worker to blame."""

import re
import sys
from pathlib import Path

import pytest
from forking_launcher import FORKING_LAUNCHER

from tfdist.launch.machine.mpi import horovod_problem
from tfdist.testing import FakeCluster

PROGRAMS = Path(__file__).parents[2] / "programs"
needs_horovod = pytest.mark.skipif(horovod_problem() is not None, reason=str(horovod_problem()))


@pytest.mark.parametrize(
    ("engine", "program"),
    [
        ("grpc", "stock_mirrored.py"),
        pytest.param("horovod", "stock_horovod.py", marks=needs_horovod),
    ],
)
def test_the_worker_that_fails_is_blamed(
    fake_cluster: FakeCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    engine: str,
    program: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ("--engine", engine, "--num-instances", "2", "--log-dir", "logs")
    command = (sys.executable, str(PROGRAMS / program))
    words = [FORKING_LAUNCHER, "run", *options, "--", *command]
    with fake_cluster.start_script(words, engine="none", forked=True) as script:
        launcher = script.workers[0]
        assert launcher.wait(120.0) == 1, launcher.text()
        shown = launcher.text()
    assert "worker 1 failed first" in shown
    assert "ValueError: no such file: part-7" in (tmp_path / "logs" / "worker-1.log").read_text()
    sums = dict(re.findall(r"worker (\d), epoch 0: (\S+)", shown))
    assert sums["0"] == sums["1"]
