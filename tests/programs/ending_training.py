"""A training without end, whose worker 1 may end in its third step.

    ending_training.py ENGINE WAY [PATH]

The way: an exit code, "error", "stop" (by SIGSTOP), or "never". With "begin" the error comes before
the first step. With "slow" all end in the third step, and worker 0 closes its session slowly; it
makes the file PATH then, for which all look at their end.
"""

import os
import signal
import sys
import time
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

import tfdist.estimator as tfe
from tfdist.cluster.rendezvous import peer_state, peer_watch
from tfdist.strategies import HorovodStrategy, MultiWorkerStrategy

engine, way, *paths = sys.argv[1:]
peer_watch._LEAVING_S = 0.5  # of 5: a wait that cannot be interrupted ends soon, and 3 s are long
if way != "slow":  # Where nothing is silent, but a busy machine may let a worker seem so.
    peer_state.SILENT_AFTER_S = peer_state.REPORT_EVERY_S = 1.5
strategy = HorovodStrategy() if engine == "horovod" else MultiWorkerStrategy()
worker = strategy.extended.collectives.worker_index


class End(v1.train.SessionRunHook):  # type: ignore[misc,name-defined]
    steps = 0

    def begin(self) -> None:
        if way == "begin" and worker == 1:
            end("error")

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.steps += 1
        print("trains", flush=True)
        if self.steps != 3:
            return
        if way == "slow":
            if worker == 0:
                run_context.session.close = close_slowly(run_context.session.close)
            run_context.request_stop()
        elif way != "never" and worker == 1:
            end(way)


def end(way: str) -> None:
    print("ends", flush=True)
    if way == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if way == "error":
        raise ArithmeticError("of the hook")
    sys.exit(int(way))


def close_slowly(close: Any) -> Any:
    def closed() -> None:
        time.sleep(1)
        close()
        open(paths[0], "w").close()

    return closed


def input_fn() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensors(tf.ones([1, 2])).repeat()


def model_fn(features: Any, mode: str) -> tfe.EstimatorSpec:
    # So small that worker 0 has nothing to receive: it waits for its sum to be fetched.
    loss = tf.reduce_mean(tf.matmul(features, v1.get_variable("weight", [2, 1])))
    train_op = v1.train.GradientDescentOptimizer(0.1).minimize(loss, v1.train.get_global_step())
    return tfe.EstimatorSpec(mode, loss=loss, train_op=train_op)


config = tfe.RunConfig(train_distribute=strategy)
tfe.Estimator(model_fn, config=config).train(input_fn, hooks=[End()])
if way == "slow":
    print("all have closed" if os.path.exists(paths[0]) else "too early", flush=True)
