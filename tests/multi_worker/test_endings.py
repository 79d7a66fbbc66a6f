"""The end of a training: in its middle, after its last step, or never, with a stopped worker."""

from pathlib import Path
from typing import Any

import pytest

START_LIMIT_S = 150.0
END_LIMIT_S = 60.0

PROGRAM = """
import os
import signal
import sys
import time

import tensorflow as tf
import tensorflow.compat.v1 as v1

import tfdist.estimator as tfe
from tfdist.cluster.rendezvous import peer_state, peer_watch
from tfdist.strategies import HorovodStrategy, MultiWorkerStrategy

engine, way, *paths = sys.argv[1:]
peer_watch._LEAVING_S = 0.5  # of 5: a wait that cannot be interrupted ends soon, and 3 s are long
peer_state.SILENT_AFTER_S = peer_state.REPORT_EVERY_S = 1.5
strategy = HorovodStrategy() if engine == "horovod" else MultiWorkerStrategy()


class EndEarly(v1.train.SessionRunHook):
    steps = 0

    def after_run(self, run_context, run_values):
        self.steps += 1
        if self.steps == 3 and way == "slow":
            if strategy.extended.collectives.worker_index == 0:
                close = run_context.session.close
                def close_slowly():
                    time.sleep(3)
                    close()
                    open(paths[0], "w").close()
                run_context.session.close = close_slowly
            run_context.request_stop()
        elif self.steps == 3 and strategy.extended.collectives.worker_index == 1:
            print("ends", flush=True)
            if way == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
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
if way == "slow":
    print("all have closed" if os.path.exists(paths[0]) else "too early", flush=True)
"""


@pytest.fixture
def program(tmp_path: Path) -> str:
    """The path of a program whose worker 1 ends in its third step in the way that is asked for."""
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return str(path)


@pytest.mark.parametrize(
    ("engine", "way", "code"),
    [("grpc", "0", 0), ("horovod", "3", 3), ("horovod", "error", 1)],
)
def test_a_worker_that_ends_early_ends_first_and_the_other_blames_it(
    fake_cluster: Any, program: str, engine: str, way: str, code: int
) -> None:
    with fake_cluster.start_script([program, engine, way], engine=engine, forked=True) as script:
        survivor, leaver = script.workers
        leaver.wait_for_text("^ends$", START_LIMIT_S)
        assert leaver.wait(END_LIMIT_S) == code
        # mpirun may end it by a signal, as soon as another one has failed.
        assert survivor.wait(END_LIMIT_S) in ((200,) if code == 0 else (200, -15, -9))
        lines = survivor.stderr().splitlines()
        ends = [worker.ended() for worker in script.workers]
    assert ends[1].time_s <= ends[0].time_s
    (line,) = (line for line in lines if line.startswith("WorkerLostError: "))
    assert "Traceback (most recent call last):" not in lines
    # Horovod's error does not name the worker; the connections do, if its process ends in time.
    who = {
        "grpc": ("worker 1 (127.0.0.1:",),
        "horovod": ("another worker while training: Horovod", "worker 1 ("),
    }
    assert line.startswith(tuple(f"WorkerLostError: Lost {one}" for one in who[engine]))
    if way == "error":
        assert "Lost worker 1 (" in line
        assert "its training has failed: ArithmeticError: of the hook." in line
        assert leaver.stderr().rstrip().endswith("ArithmeticError: of the hook")


@pytest.mark.parametrize("engine", ["grpc", "horovod"])
def test_no_worker_leaves_before_all_sessions_are_closed(
    fake_cluster: Any, program: str, engine: str, tmp_path: Path
) -> None:
    closed = str(tmp_path / "closed")
    options = {"engine": engine, "forked": True}
    with fake_cluster.start_script([program, engine, "slow", closed], **options) as script:
        codes = [worker.wait(START_LIMIT_S) for worker in script.workers]
        last_lines = [worker.stdout().splitlines()[-1] for worker in script.workers]
    assert codes == [0, 0]
    assert last_lines == ["all have closed"] * 2


@pytest.mark.parametrize("engine", ["grpc", "horovod"])
def test_a_stopped_worker_is_named_and_ends_the_run_after_the_limit(
    fake_cluster: Any, program: str, engine: str
) -> None:
    options = {"engine": engine, "forked": True, "env": {"TFDIST_STALL_TIMEOUT_S": "3"}}
    with fake_cluster.start_script([program, engine, "stop"], **options) as script:
        waiting = script.workers[0]
        assert waiting.wait(START_LIMIT_S) == 200
        lines = waiting.stderr().splitlines()
    (first, *_, last) = [line for line in lines if "Waiting for worker 1 (" in line]
    assert first.startswith("Waiting for worker 1 (")
    assert last.startswith("WorkerLostError: Waiting for worker 1 (")
    assert "its process is stopped (SIGSTOP, a debugger), or its host hangs. That is" in last
    assert last.endswith("longer than TFDIST_STALL_TIMEOUT_S=3.")
