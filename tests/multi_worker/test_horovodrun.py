"""Processes that Horovod's own launcher starts, without MPI: one run, on the loopback interface."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import fit_line
import numpy as np
import pytest

from tfdist.testing import engine_problem

pytestmark = pytest.mark.skipif(
    engine_problem("horovod") is not None, reason=str(engine_problem("horovod"))
)

_PROGRAM = """
import json, sys
from pathlib import Path

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1

import tfdist.estimator as tfe
from tfdist.cluster import ClusterError
from tfdist.cluster.environment import find_engine
from tfdist.cluster.instances import find_instance, shard
from tfdist.strategies import MultiWorkerStrategy, strategy_for_run

folder = Path(sys.argv[1])
try:
    MultiWorkerStrategy()
except ClusterError as error:
    refused = str(error)
strategy = strategy_for_run()

def input_fn(input_context):
    assert (input_context.num_input_pipelines, input_context.input_pipeline_id) == shard()
    values = np.random.RandomState(input_context.input_pipeline_id).randn(16, 4)
    return tf.data.Dataset.from_tensors(values.astype(np.float32)).repeat()

def model_fn(features, mode):
    weights = v1.get_variable("weights", [4, 1])
    loss = tf.reduce_mean(tf.square(tf.matmul(features, weights) - 1.0))
    optimizer = v1.train.GradientDescentOptimizer(0.1)
    train_op = optimizer.minimize(loss, global_step=v1.train.get_global_step())
    return tfe.EstimatorSpec(mode, loss=loss, train_op=train_op)

class Keep(v1.train.SessionRunHook):
    def begin(self):
        [self.weights] = v1.trainable_variables()

    def end(self, session):
        np.save(folder / f"weights-{instance.index}.npy", session.run(self.weights))

instance = find_instance()
config = tfe.RunConfig(train_distribute=strategy)
tfe.Estimator(model_fn, str(folder / "model"), config).train(input_fn, steps=10, hooks=[Keep()])
(folder / f"rank-{instance.index}.json").write_text(json.dumps({
    "refused": refused,
    "strategy": type(strategy).__name__,
    "engine": find_engine(),
    "source": instance.source,
    "num_instances": instance.num_instances,
    "is_chief": config.is_chief,
    "num_workers": config.num_worker_replicas,
    "reductions": strategy.describe_reductions(),
}))
"""


def _horovodrun(program: Path, folder: Path) -> "subprocess.CompletedProcess[str]":
    launcher = [sys.executable, "-m", "horovod.runner.launch", "-np", "2", "--gloo"]
    where = ["-H", "localhost:2", "--network-interfaces", "lo"]
    command = [sys.executable, str(program), str(folder)]
    environ = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*launcher, *where, *command], env=environ, capture_output=True, text=True, timeout=120
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which two processes have trained."""
    path = tmp_path_factory.mktemp("horovodrun")
    program = path / "program.py"
    program.write_text(_PROGRAM)
    ended = _horovodrun(program, path)
    assert ended.returncode == 0, ended.stderr
    return path


def test_its_processes_train_together_and_end_with_equal_weights(folder: Path) -> None:
    first, second = (np.load(folder / f"weights-{rank}.npy") for rank in (0, 1))
    assert (first.shape, first.dtype) == ((4, 1), np.float32)
    assert first.tobytes() == second.tobytes()


@pytest.fixture(scope="module")
def reported(folder: Path) -> list[dict[str, Any]]:
    """The facts that each of the two has found."""
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in (0, 1)]


def test_over_grpc_its_processes_are_refused(reported: list[dict[str, Any]]) -> None:
    for one in reported:
        assert "was started by horovodrun with 2 processes" in one["refused"]


def test_its_processes_are_the_workers_of_one_run(reported: list[dict[str, Any]]) -> None:
    said = [{name: value for name, value in one.items() if name != "refused"} for one in reported]
    assert [one.pop("is_chief") for one in said] == [True, False]
    expected = {
        "strategy": "HorovodStrategy",
        "engine": "horovod",
        "source": "horovodrun",
        "num_instances": 2,
        "num_workers": 2,
        "reductions": "Horovod over gloo, bucket size 1 MB, bucketing threshold 0.25 MB; "
        "HOROVOD_CYCLE_TIME=0.1, HOROVOD_FUSION_THRESHOLD=1048576",
    }
    assert said == [expected, expected]


def test_fit_trains_as_one_process(tmp_path: Path) -> None:
    program, alone = Path(fit_line.__file__), tmp_path / "alone"
    alone.mkdir()
    command = [sys.executable, str(program), str(alone)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    ended = _horovodrun(program, tmp_path)
    assert ended.returncode == 0, ended.stderr
    fit_line.check_workers(tmp_path, alone, 2)
