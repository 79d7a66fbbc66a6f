"""Two trainings in one model_dir at the same time: the second one is refused, in real processes."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tfdist.estimator.checkpoints.model_dir_lock import FILE_NAME, ModelDirInUseError, locked
from tfdist.testing import WorkerFailedError
from tfdist.testing.run import wait_until

_PROGRAM = """
import sys, time

import tensorflow as tf
import tensorflow.compat.v1 as v1
import tfdist.estimator as tfe

def model_fn(features, mode):
    weight = v1.get_variable("weight", [])
    loss = tf.square(weight * features)
    step = v1.train.get_global_step()
    train_op = v1.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=step)
    return tfe.EstimatorSpec(mode, loss=loss, train_op=train_op)

class Wait(v1.train.SessionRunHook):
    def after_run(self, run_context, run_values):
        time.sleep(float(sys.argv[3]))

v1.logging.set_verbosity(v1.logging.INFO)
config = tfe.RunConfig(save_checkpoints_steps=5)
estimator = tfe.Estimator(model_fn, sys.argv[1], config)
dataset = lambda: tf.data.Dataset.from_tensors(1.0).repeat()
estimator.train(dataset, max_steps=int(sys.argv[2]), hooks=[Wait()])
"""


def test_the_second_is_refused_and_a_restart_after_kill_9_takes_the_lock_over(
    fake_cluster: Any, tmp_path: Path
) -> None:
    folder, program = tmp_path / "model", tmp_path / "program.py"
    program.write_text(_PROGRAM)

    def start(max_steps: int, pause_s: float = 0.0) -> Any:
        argv = [str(program), str(folder), str(max_steps), str(pause_s)]
        return fake_cluster.start_script(argv, engine="none", forked=True)

    def run(max_steps: int) -> Any:
        with start(max_steps) as script:
            return script.wait(120, check=False)[0]

    with start(10**6, 0.1) as script:
        [first] = script.workers
        assert wait_until((folder / "model.ckpt-10.index").exists, limit_s=120), first.text()
        second = run(20)
        assert second.returncode == 2
        last = second.stderr.splitlines()[-1]
        assert last.startswith(f"ModelDirInUseError: process {first.pid} on ")
        assert "choose another model_dir." in last
        assert first.poll() is None
        first.send_signal(signal.SIGKILL)
        assert first.wait(60) == -signal.SIGKILL
    assert (folder / FILE_NAME).exists()
    state = (folder / "checkpoint").read_text()
    step = int(state.split('"')[1].split("-")[1])
    again = run(step + 10)
    assert again.returncode == 0, again.stderr
    assert again.stderr.count("is taken over") == 1
    assert f"taken over from process {first.pid} on " in again.stderr
    assert f"Restoring parameters from {folder}/model.ckpt-{step}" in again.stderr
    assert (folder / f"model.ckpt-{step + 10}.index").exists()
    assert not (folder / FILE_NAME).exists()


@pytest.fixture
def train(train_briefly: Any) -> Any:
    """Trains three steps, and returns who held the lock meanwhile."""

    def train(engine: str, folder: str) -> dict[str, Any]:
        holders: set[int] = set()

        def hooks(index: int) -> list[Any]:
            from brief_training import Steps

            lock = Path(folder, FILE_NAME)
            return [Steps(lambda *_: holders.add(json.loads(lock.read_text())["pid"]))]

        limits = {"limits": lambda index: {"steps": 3}}
        end = train_briefly(engine, hooks=hooks, model_dir=lambda index: folder, **limits)
        if end["error"] is not None:
            raise RuntimeError(end["error"])
        return {**end, "pid": os.getpid(), "holders": holders}

    return train


@pytest.mark.parametrize("engine", ["grpc", "horovod"])
def test_the_chief_alone_holds_the_lock_whatever_joins_the_workers(
    fake_cluster: Any, train: Any, tmp_path: Path, engine: str
) -> None:
    ends = fake_cluster.run(train, engine, str(tmp_path / "model"), engine=engine)
    [chief] = [end for end in ends if end["is_chief"]]
    assert [end["holders"] for end in ends] == [{chief["pid"]}] * 2
    assert not (tmp_path / "model" / FILE_NAME).exists()


def test_a_run_is_refused_while_another_chief_trains(
    fake_cluster: Any, train: Any, tmp_path: Path
) -> None:
    env = {"TFDIST_START_TIMEOUT_S": "5"}
    folder = str(tmp_path / "model")
    began_s = time.monotonic()
    with locked(folder), pytest.raises(WorkerFailedError) as caught:
        fake_cluster.run(train, "horovod", folder, engine="horovod", env=env)
    assert time.monotonic() - began_s < 60
    assert f"{ModelDirInUseError.__name__}: process {os.getpid()} on" in str(caught.value)
