"""A small training by Keras' `fit` that the tests of faults start; `fate` says how."""

import sys
from typing import Any

from fate import (
    MIDDLE,
    NUM_STEPS,
    SAVE_STEPS,
    fault,
    index,
    model_dir,
    moment,
    suffer,
    suffer_in_a_save,
)

if moment == "start":
    suffer()

# Keras does without these, and starts faster.
sys.modules.update(dict.fromkeys(("pandas", "PIL", "scipy")))

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from tfdist.strategies import strategy_for_run  # noqa: E402

strategy = strategy_for_run()
keras.utils.set_random_seed(1)
rows = np.arange(8 * SAVE_STEPS, dtype=np.float32)[:, None] % 7
dataset = tf.data.Dataset.from_tensor_slices((rows, np.ones_like(rows))).batch(8)


class Fate(keras.callbacks.Callback):  # type: ignore[misc]
    step = 0

    def on_train_begin(self, logs: Any = None) -> None:
        self.step = int(self.model.optimizer.iterations)
        if moment == "model":
            suffer()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self.step == {"first step": 0, "middle": MIDDLE}.get(moment):
            suffer()
        self.step += 1
        if moment == "saving" and self.step == 2 * SAVE_STEPS and index == 0:
            suffer_in_a_save(".saving*")

    def on_test_begin(self, logs: Any = None) -> None:
        if moment == "evaluation" and self.step > MIDDLE:
            suffer()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if fault == "hold" and not index:
            print(f"Saving checkpoints for {self.step}", flush=True)

    def on_train_end(self, logs: Any = None) -> None:
        if moment == "end":
            suffer()


with strategy.scope():
    # Gradients of more than 2 MiB: over gRPC workers exchange them directly.
    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(550_000)])
    model.compile(keras.optimizers.SGD(0.001, momentum=0.9), "mse")
own_dir = model_dir if index == 0 else f"{model_dir}.{index}"
backup = keras.callbacks.BackupAndRestore(own_dir, double_checkpoint=True, delete_checkpoint=False)
held_out = dataset.take(3) if moment == "evaluation" else None
epochs = NUM_STEPS // SAVE_STEPS
model.fit(dataset, validation_data=held_out, epochs=epochs, verbose=0, callbacks=[backup, Fate()])
print("trained to the end", flush=True)
