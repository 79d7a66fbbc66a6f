"""Measures memory, threads and descriptors of a long training, and of many calls in one process.

    MALLOC_ARENA_MAX=1 tfdist run --num-instances 2 -- scripts/benchmarks/leaks.py
        fit|loop|estimator [--steps 3000] [--calls 30]

Without that variable each thread may get an arena of its own from the C library. An Estimator has
new threads in each call, so these arenas grow for some dozens of calls, though no more memory is in
use: they are no leak.

Prints a JSON line on worker 0: each measure after every tenth of the steps, and then of the calls
of train (or fit), evaluate and predict. All have leveled off if the last third grows by less than a
tenth of a megabyte a hundred steps, or half a megabyte a call, and by no thread or descriptor; then
the exit code is 0.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import psutil
import tensorflow as tf

from tfdist.strategies import strategy_for_run

ROWS, COLUMNS = 32, 16
x = np.random.RandomState(0).rand(ROWS, COLUMNS).astype("float32")
y = x.sum(axis=1, keepdims=True)


class Measures:
    """Measures of this process, at one point after another."""

    def __init__(self) -> None:
        self.memory_mb: list[float] = []
        self.threads: list[int] = []
        self.descriptors: list[int] = []

    def take(self) -> None:
        """Measures now."""
        gc.collect()
        process = psutil.Process()
        self.memory_mb.append(round(process.memory_info().rss / (1 << 20), 2))
        self.threads.append(process.num_threads())
        self.descriptors.append(process.num_fds())

    def has_leveled_off(self, allowed_mb: float) -> bool:
        """Returns whether the last third grows by no thread or descriptor, and less than this."""
        first = -(len(self.memory_mb) // 3)
        grown = min(self.memory_mb[-2:]) - self.memory_mb[first - 1]
        counts = (self.threads, self.descriptors)
        return grown < allowed_mb and all(one[-1] <= max(one[:first]) for one in counts)


def rows() -> tf.data.Dataset:
    """Returns one batch."""
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(ROWS)


def keras_calls(strategy: Any) -> tuple[Callable[[int], Any], Callable[[], Any]]:
    """Returns what trains so many steps by `fit`, and what evaluates and predicts."""
    import keras

    with strategy.scope():
        model = keras.Sequential([keras.layers.Input([COLUMNS]), keras.layers.Dense(1)])
        model.compile("adam", "mse", metrics=["mae"])

    def use() -> None:
        model.evaluate(rows(), verbose=0)
        model.predict(rows(), verbose=0)

    return lambda steps: model.fit(rows().repeat(steps), verbose=0), use


def loop_calls(strategy: Any) -> tuple[Callable[[int], Any], Callable[[], Any]]:
    """Returns the same of a loop; it evaluates by a reduction."""
    with strategy.scope():
        weight = tf.Variable(tf.zeros([COLUMNS, 1]), aggregation=tf.VariableAggregation.MEAN)

    def replica_step(features: Any, sums: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(features @ weight - sums))
        context = tf.distribute.get_replica_context()
        weight.assign_sub(0.01 * context.all_reduce("MEAN", tape.gradient(loss, weight)))
        return loss

    @tf.function  # type: ignore[untyped-decorator]
    def train_step(batch: Any) -> Any:
        return strategy.reduce("MEAN", strategy.run(replica_step, args=batch), axis=None)

    def train(steps: int) -> None:
        for batch in strategy.experimental_distribute_dataset(rows().repeat(steps)):
            train_step(batch)

    return train, lambda: strategy.reduce("MEAN", tf.reduce_mean(x @ weight), axis=None)


def estimator_calls(strategy: Any) -> tuple[Callable[[int], Any], Callable[[], Any]]:
    """Returns the same of an Estimator."""
    import tensorflow.compat.v1 as v1

    import tfdist.estimator as tfe

    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        weight = v1.get_variable("weight", [COLUMNS, 1])
        predictions = features @ weight
        if mode == tfe.ModeKeys.PREDICT:
            return tfe.EstimatorSpec(mode, predictions=predictions)
        loss = tf.reduce_mean(tf.square(predictions - labels))
        train_op = v1.train.AdamOptimizer(0.01).minimize(loss, v1.train.get_global_step())
        return tfe.EstimatorSpec(mode, loss=loss, train_op=train_op)

    config = tfe.RunConfig(
        tempfile.mkdtemp(), train_distribute=strategy, save_checkpoints_steps=500
    )
    estimator = tfe.Estimator(model_fn, config=config)

    def use() -> None:
        if config.is_chief:
            estimator.evaluate(rows)
            list(estimator.predict(rows))

    return lambda steps: estimator.train(lambda: rows().repeat(), steps=steps), use


def main() -> int:
    """Trains and calls, and says what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", choices=("fit", "loop", "estimator"))
    parser.add_argument("--steps", type=int, default=3_000)
    parser.add_argument("--calls", type=int, default=30)
    arguments = parser.parse_args()
    strategy = strategy_for_run()
    made = {"fit": keras_calls, "loop": loop_calls, "estimator": estimator_calls}
    train, use = made[arguments.program](strategy)
    of_steps, of_calls = Measures(), Measures()
    for _ in range(10):
        train(arguments.steps // 10)
        of_steps.take()
    for _ in range(arguments.calls):
        train(2)
        use()
        of_calls.take()
    is_level = {
        "steps": of_steps.has_leveled_off(0.1 * arguments.steps / 3 / 100),
        "calls": of_calls.has_leveled_off(0.5 * arguments.calls / 3),
    }
    if strategy.extended.should_checkpoint:
        found = {"steps": vars(of_steps), "calls": vars(of_calls), "has_leveled_off": is_level}
        print(json.dumps(found), flush=True)
    return 0 if all(is_level.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
