"""A training whose global batch stays when a worker is left out; its table is divided.

    elastic_training.py MODEL_DIR [STEP ...]

The start number i kills worker 1 after the i-th STEP.
"""

import os
import signal
import sys
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

import tfdist.estimator as tfe
from tfdist.cluster.instances import micro_batch_size, restart_count, shard, size_factor
from tfdist.strategies import strategy_for_run

STEPS, GLOBAL_BATCH = 30, 8


def input_fn() -> tf.data.Dataset:
    """Returns this worker's share of each global batch."""
    values = tf.random.stateless_normal([36, 4], seed=[1, 2])  # [examples, features]
    dataset = tf.data.Dataset.from_tensor_slices((values, values[:, :1] ** 2))
    dataset = dataset.shuffle(36, seed=5).repeat().shard(*shard())
    return dataset.batch(micro_batch_size(GLOBAL_BATCH))


def model_fn(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
    """Returns a linear model of features, and of a row of a table for each, with momentum."""
    table = v1.get_variable("table", [8, 4], initializer=v1.ones_initializer())
    rows = tf.nn.embedding_lookup(table, tf.cast(10 * tf.abs(features[:, 0]), tf.int64) % 8)
    output = tf.keras.layers.Dense(1, kernel_initializer="ones")(features * rows)
    loss = tf.reduce_mean(tf.square(output - labels))
    optimizer = v1.train.MomentumOptimizer(0.05, 0.9)
    train_op = optimizer.minimize(loss, v1.train.get_global_step())
    return tfe.EstimatorSpec(mode, loss=loss, train_op=train_op)


class Kill(v1.train.SessionRunHook):  # type: ignore[misc,name-defined]
    """Kills this process after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def begin(self) -> None:
        self.global_step = v1.train.get_global_step()

    def before_run(self, run_context: Any) -> Any:
        return v1.train.SessionRunArgs(self.global_step)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if run_values.results >= self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def train(model_dir: str, kills: list[int]) -> None:
    """Trains 30 steps, with a checkpoint after every five."""
    v1.logging.set_verbosity(v1.logging.INFO)
    partitioners = tf.distribute.experimental.partitioners
    divide = partitioners.MinSizePartitioner(min_shard_bytes=64, max_shards=2)
    strategy = strategy_for_run(variable_partitioner=divide)
    index = int(strategy.extended.collectives.worker_index)
    start = restart_count()
    hooks = [Kill(kills[start])] if index == 1 and start < len(kills) else []
    print("size factor", size_factor(), flush=True)
    config = tfe.RunConfig(
        train_distribute=strategy, save_checkpoints_steps=5, save_checkpoints_async=False
    )
    own_dir = model_dir if index == 0 else f"{model_dir}.{index}"
    tfe.Estimator(model_fn, own_dir, config).train(input_fn, hooks=hooks, max_steps=STEPS)


if __name__ == "__main__":
    train(sys.argv[1], [int(word) for word in sys.argv[2:]])
