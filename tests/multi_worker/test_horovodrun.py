"""Processes that Horovod's own launcher starts, without MPI: one run, on the loopback interface."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import fit_line
import pytest
from forking_launcher import rank_command

from tfdist.testing import FakeCluster, engine_problem

pytestmark = pytest.mark.skipif(
    engine_problem("horovod") is not None, reason=str(engine_problem("horovod"))
)

_PROGRAM = """
import json, sys
from pathlib import Path

import fit_line
import numpy as np
import tensorflow as tf
from brief_training import train_briefly

from tfdist.cluster import ClusterError
from tfdist.cluster.environment import find_engine
from tfdist.cluster.instances import find_instance, shard
from tfdist.strategies import MultiWorkerStrategy, strategy_for_run

try:
    MultiWorkerStrategy()
except ClusterError as error:
    refused = str(error)

def input_fn(index):
    assert shard() == (2, index)
    values = np.random.RandomState(index).randn(1, 2).astype(np.float32)
    return lambda: tf.data.Dataset.from_tensors(values).repeat()

end = train_briefly("horovod", input_fn=input_fn, limits=lambda index: {"steps": 10})
assert end["error"] is None, end["error"]
strategy, instance = strategy_for_run(), find_instance()
Path(sys.argv[1], f"rank-{instance.index}.json").write_text(json.dumps({
    "refused": refused,
    "weight": end["values"]["weight"].tolist(),
    "is_chief": end["is_chief"],
    "strategy": type(strategy).__name__,
    "engine": find_engine(),
    "source": instance.source,
    "num_instances": instance.num_instances,
    "num_workers": strategy.extended.collectives.num_workers,
    "reductions": strategy.describe_reductions(),
}))
fit_line.main(sys.argv[1])
"""


@pytest.fixture(scope="module")
def folder(fake_cluster_server: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which two processes that have trained together have written."""
    path = tmp_path_factory.mktemp("horovodrun")
    program = path / "program.py"
    program.write_text(_PROGRAM)
    launcher = [sys.executable, "-m", "horovod.runner.launch", "-np", "2", "--gloo"]
    where = ["-H", "localhost:2", "--network-interfaces", "lo"]
    rank = rank_command([str(program), str(path)], path, fake_cluster_server)
    settings = {"OMP_NUM_THREADS": "1", "HOROVOD_CYCLE_TIME": "5"}  # The ranks share the cores.
    environ = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", **settings}
    ended = subprocess.run(
        [*launcher, *where, *rank], env=environ, capture_output=True, text=True, timeout=120
    )
    said = [one.read_text() for one in path.glob("*.stderr")]
    assert ended.returncode == 0, [ended.stderr, *said]
    return path


@pytest.fixture(scope="module")
def reported(folder: Path) -> list[dict[str, Any]]:
    """The facts that each process has found."""
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in (0, 1)]


def test_its_processes_train_together_and_end_with_equal_weights(
    reported: list[dict[str, Any]],
) -> None:
    first, second = (one["weight"] for one in reported)
    assert first == second != [[1.0, 1.0], [1.0, 1.0]]


def test_over_grpc_its_processes_are_refused(reported: list[dict[str, Any]]) -> None:
    for one in reported:
        assert "was started by horovodrun with 2 processes" in one["refused"]


def test_its_processes_are_the_workers_of_one_run(reported: list[dict[str, Any]]) -> None:
    said = [{k: v for k, v in one.items() if k not in ("refused", "weight")} for one in reported]
    assert [one.pop("is_chief") for one in said] == [True, False]
    expected = {
        "strategy": "HorovodStrategy",
        "engine": "horovod",
        "source": "horovodrun",
        "num_instances": 2,
        "num_workers": 2,
        "reductions": "Horovod over gloo, bucket size 1 MB, bucketing threshold 0.25 MB; "
        "HOROVOD_CYCLE_TIME=5 (yours), HOROVOD_FUSION_THRESHOLD=1048576",
    }
    assert said == [expected, expected]


def test_fit_trains_as_one_process(fake_cluster: FakeCluster, folder: Path, tmp_path: Path) -> None:
    fake_cluster.run_script([fit_line.__file__, str(tmp_path)], engine="none", forked=True)
    fit_line.check_workers(folder, tmp_path, 2)
