"""A worker that ends in the middle of training: its exit code is its own, the others' are 200."""

from pathlib import Path
from typing import Any

import pytest

START_LIMIT_S = 150.0
END_LIMIT_S = 60.0

PROGRAM = """
import sys
import time

# TensorFlow does without these, and starts faster.
sys.modules.update(dict.fromkeys(("h5py", "pandas", "PIL", "scipy")))

import tensorflow as tf
import tensorflow.compat.v1 as v1

import tfdist.estimator as tfe
from tfdist.cluster.rendezvous import peer_watch
from tfdist.strategies import HorovodStrategy, MultiWorkerStrategy

engine, way = sys.argv[1:]
strategy = HorovodStrategy() if engine == "horovod" else MultiWorkerStrategy()


class EndEarly(v1.train.SessionRunHook):
    steps = 0

    def after_run(self, run_context, run_values):
        self.steps += 1
        if self.steps == 3 and way == "slow":
            if strategy.extended.collectives.worker_index == 0:
                peer_watch._LEAVING_S = 0.5  # of 5, so that 5 s are long
                close = v1.Session.close
                v1.Session.close = lambda session: (time.sleep(5), close(session))
            run_context.request_stop()
        elif self.steps == 3 and strategy.extended.collectives.worker_index == 1:
            print("ends", flush=True)
            if way == "error":
                raise ArithmeticError("of the hook")
            sys.exit(int(way))


def input_fn():
    return tf.data.Dataset.from_tensors(tf.ones([1, 2])).repeat()


def model_fn(features, mode):
    loss = tf.reduce_mean(tf.matmul(features, v1.get_variable("weight", [2, 1])))
    train_op = v1.train.GradientDescentOptimizer(0.1).minimize(loss, v1.train.get_global_step())
    return tfe.EstimatorSpec(mode, loss=loss, train_op=train_op)


config = tfe.RunConfig(train_distribute=strategy)
tfe.Estimator(model_fn, config=config).train(input_fn, hooks=[EndEarly()])
"""


@pytest.fixture
def program(tmp_path: Path) -> str:
    """The path of a program whose worker 1 ends in its third step in the way that is asked for."""
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return str(path)


@pytest.mark.parametrize(
    ("engine", "way", "code"),
    [("grpc", "0", 0), ("horovod", "0", 0), ("horovod", "3", 3), ("horovod", "error", 1)],
)
def test_a_worker_that_ends_early_ends_first_and_the_other_blames_it(
    fake_cluster: Any, program: str, engine: str, way: str, code: int
) -> None:
    with fake_cluster.start_script([program, engine, way], engine=engine) as script:
        survivor, leaver = script.workers
        leaver.wait_for_text("^ends$", START_LIMIT_S)
        assert leaver.wait(END_LIMIT_S) == code
        # mpirun may end it by a signal, as soon as another one has failed.
        assert survivor.wait(END_LIMIT_S) in ((200,) if code == 0 else (200, -15))
        lines = survivor.stderr().splitlines()
        ends = [worker.ended() for worker in script.workers]
    assert ends[1].time_s <= ends[0].time_s
    (line,) = (line for line in lines if line.startswith("WorkerLostError: "))
    assert "Traceback (most recent call last):" not in lines
    who = "worker 1 (127.0.0.1:" if engine == "grpc" else "another worker while training: Horovod"
    assert line.startswith(f"WorkerLostError: Lost {who}")
    if way == "error":
        assert leaver.stderr().rstrip().endswith("ArithmeticError: of the hook")


@pytest.mark.parametrize("engine", ["grpc", "horovod"])
def test_a_worker_that_takes_long_to_close_its_session_does_not_miss_those_that_have_left(
    fake_cluster: Any, program: str, engine: str
) -> None:
    with fake_cluster.start_script([program, engine, "slow"], engine=engine) as script:
        codes = [worker.wait(START_LIMIT_S) for worker in script.workers]
        ends = [worker.ended().time_s for worker in script.workers]
    assert codes == [0, 0]
    assert ends[0] - ends[1] > 3 or engine == "horovod"
