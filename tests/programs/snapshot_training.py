"""A training with snapshots in memory: its weights depend on the order of every batch.

    snapshot_training.py MODEL_DIR [WORKER:STEP ...]

The first start kills WORKER after STEP, once the last snapshot is there, the second start the next
one, and so on.
"""

import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

import tfdist.estimator as tfe
from tfdist.cluster.instances import Instance
from tfdist.estimator.loop import snapshots
from tfdist.process.snapshot_folders import folder_of_host, name_for
from tfdist.strategies import strategy_for_run
from tfdist.strategies.saving import snapshots as host_snapshots
from tfdist.testing.run import wait_until

STEPS, EVERY = 30, 5


def model_fn(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
    normalize = tf.keras.layers.BatchNormalization()
    output = tf.keras.layers.Dense(3, kernel_initializer="ones")(
        tf.concat([features, normalize(features, training=True)], axis=1)
    )
    loss = tf.reduce_mean(tf.square(output - 1.0))
    optimizer = v1.train.MomentumOptimizer(0.05, 0.9)
    pairs = optimizer.compute_gradients(loss)
    with tf.control_dependencies(normalize.updates):
        train_op = tf.identity(loss)

    def apply_on_host(*gradients: Any) -> tf.Operation:
        return optimizer.apply_gradients(zip(gradients, [v for _, v in pairs], strict=True))

    host_call = (apply_on_host, [g for g, _ in pairs])
    return tfe.EstimatorSpec(mode, loss=loss, train_op=train_op, host_call=host_call)


class Watch(v1.train.SessionRunHook):  # type: ignore[misc,name-defined]
    """Notes the first step, and kills this process after another one, if that is not None."""

    def __init__(self, last: int | None, folder: Path) -> None:
        self.last = last
        self.folder = folder

    def begin(self) -> None:
        self.global_step = v1.train.get_global_step()

    def after_create_session(self, session: Any, coord: Any) -> None:
        self.first_step = self.step = int(session.run(self.global_step))

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.step += 1
        if self.step == self.last:
            newest = self.folder / f"model.ckpt-{self.step // EVERY * EVERY}.index"
            assert wait_until(newest.exists, 30.0)
            os.kill(os.getpid(), signal.SIGKILL)


def train(model_dir: str, kill: tuple[int, int] | None = None, *, own_host: bool = False) -> int:
    """Trains 30 steps, with a checkpoint at the start and the end only.

    Args:
      model_dir: The folder of worker 0; the others have folders of their own.
      kill: The worker that is killed, and the step after which it is.
      own_host: Whether each worker takes itself for the only one on its host.

    Returns:
      The step at which it began.
    """
    v1.logging.set_verbosity(v1.logging.INFO)
    strategy = strategy_for_run()
    index = int(strategy.extended.collectives.worker_index)
    if own_host:
        socket.gethostname = lambda: f"host-{index}"
        snapshots.find_instance = host_snapshots.find_instance = lambda: Instance()

    def input_fn() -> tf.data.Dataset:
        dataset = tf.data.Dataset.range(1000 * index, 1000 * index + 40)
        dataset = dataset.shuffle(40, seed=5).repeat().batch(4)
        return dataset.map(lambda x: tf.cast(x, tf.float32)[:, None] / 1000.0)

    config = tfe.RunConfig(
        train_distribute=strategy, save_checkpoints_steps=1000, log_step_count_steps=1000
    )
    folder = folder_of_host(os.environ["TFDIST_RUN"]) / name_for(model_dir)
    watch = Watch(kill[1] if kill is not None and kill[0] == index else None, folder)
    own_dir = model_dir if index == 0 else f"{model_dir}.{index}"
    tfe.Estimator(model_fn, own_dir, config).train(input_fn, hooks=[watch], max_steps=STEPS)
    return watch.first_step


def kill_of_start() -> tuple[int, int] | None:
    """Returns what the start of `tfdist run` that this is kills: the worker and the step."""
    start = int(os.environ["TFDIST_RESTART_COUNT"])
    for word in sys.argv[2 + start : 3 + start]:
        worker, step = map(int, word.split(":"))
        return worker, step
    return None


if __name__ == "__main__":
    train(sys.argv[1], kill_of_start())
