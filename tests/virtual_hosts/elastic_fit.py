"""Fits a line through twelve points until a host has gone and come back, and two epochs more.

    elastic_fit.py OUT

The global batch is all points, so that any number of workers trains the same. Each worker leaves
its weights and the number of epochs in OUT, under its own index.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # Keras does without these, and starts faster.
    sys.modules.update(dict.fromkeys(("pandas", "PIL", "scipy")))

import keras
import numpy as np
import tensorflow as tf

from tfdist.cluster.instances import find_instance, restart_count
from tfdist.strategies import strategy_for_run

POINTS = np.linspace(-1.0, 1.0, 12, dtype=np.float32)[:, None]
HOSTS, STEPS, EPOCHS_MORE = 3, 5, 2
ENDLESS, SECONDS_PER_STEP = 100_000, 0.05


class Course(keras.callbacks.Callback):  # type: ignore[misc]
    """Says each epoch, and ends the training when all hosts are back."""

    def __init__(self, num_epochs: int | None) -> None:
        super().__init__()
        self.num_epochs, self.num_here, self.epochs = num_epochs, 0, 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.num_epochs is None:
            time.sleep(SECONDS_PER_STEP)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.num_here, self.epochs = self.num_here + 1, epoch + 1
        number, start = find_instance().num_instances, restart_count()
        # In one piece: without a buffer, `print` lets another worker write before the line's end.
        sys.stdout.write(f"epoch {epoch} as one of {number}, start {start}\n")
        sys.stdout.flush()
        is_back = number == HOSTS and start > 0 and self.num_here == EPOCHS_MORE
        self.model.stop_training = is_back or self.epochs == self.num_epochs


def train(folder: str, num_epochs: int | None) -> None:
    """Trains so many epochs; None until all hosts are back."""
    strategy = strategy_for_run()
    rows = tf.data.Dataset.from_tensor_slices((POINTS, 3.0 * POINTS - 1.0)).batch(len(POINTS))
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.002, momentum=0.5), "mse")
    course = Course(num_epochs)
    backup = keras.callbacks.BackupAndRestore(os.path.join(folder, "backup"))
    dataset = rows.repeat(STEPS)
    model.fit(dataset, epochs=ENDLESS, verbose=0, callbacks=[backup, course])
    found = {
        "weights": [weight.ravel().tolist() for weight in model.get_weights()],
        "steps": int(model.optimizer.iterations),
        "epochs": course.epochs,
    }
    index = strategy.extended.collectives.worker_index
    Path(folder, str(index)).write_text(json.dumps(found))


if __name__ == "__main__":
    train(sys.argv[1], None)
