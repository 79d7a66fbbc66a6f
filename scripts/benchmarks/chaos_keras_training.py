"""The program that chaos_keras.py disturbs: `fit` or a loop, momentum, a shuffle with a seed.

    chaos_keras_training.py fit|loop keras|tf_keras MODEL_DIR

Prints a line at each step, save and evaluation of worker 0, and at the end the digest of all
weights and slots.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.strategies import strategy_for_run

program, library, model_dir = sys.argv[1], sys.argv[2], Path(sys.argv[3])
keras: Any = importlib.import_module(library)
BATCH_SIZE, STEPS, EPOCHS, SAVE_STEPS = 24, 12, 6, 7

strategy = strategy_for_run()
is_first = strategy.extended.should_checkpoint
keras.utils.set_random_seed(1)
x = np.random.RandomState(0).rand(BATCH_SIZE * STEPS, 20).astype("float32")
y = x.sum(axis=1, keepdims=True)
dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(1_000, seed=1).batch(BATCH_SIZE)
with strategy.scope():
    layers = [keras.layers.Dense(64, "relu"), keras.layers.Dense(1)]
    model = keras.Sequential([keras.layers.Input([20]), *layers])
    optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
    optimizer.build(model.trainable_variables)
    model.compile(optimizer, "mse")


def say(where: str) -> None:
    """Prints where worker 0 is."""
    if is_first:
        print(f"at {where}", flush=True)


class Says(keras.callbacks.Callback):  # type: ignore[misc]
    """Says where `fit` is."""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        say("steps" if batch % SAVE_STEPS else "save")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        say("save")

    def on_test_begin(self, logs: Any = None) -> None:
        say("evaluation")


def fit() -> None:
    """Trains by `fit`, and evaluates after each epoch."""
    backup = keras.callbacks.BackupAndRestore(str(model_dir), save_freq=SAVE_STEPS)
    held_out = tf.data.Dataset.from_tensor_slices((x[:48], y[:48])).batch(BATCH_SIZE)
    callbacks = [Says(), backup]
    model.fit(dataset, epochs=EPOCHS, validation_data=held_out, verbose=0, callbacks=callbacks)


def loop() -> None:
    """Trains by a loop, which reads on at the step of its checkpoint."""
    state = tf.train.Checkpoint(model=model, optimizer=optimizer)
    manager = tf.train.CheckpointManager(state, str(model_dir), max_to_keep=2)
    if manager.latest_checkpoint:
        state.restore(manager.latest_checkpoint)

    def replica_step(rows: Any, sums: Any) -> Any:
        with tf.GradientTape() as tape:
            errors = tf.reduce_sum(tf.square(model(rows, training=True) - sums), axis=1)
            loss = tf.nn.compute_average_loss(errors, global_batch_size=BATCH_SIZE)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function  # type: ignore[untyped-decorator]
    def train_step(batch: Sequence[Any]) -> Any:
        return strategy.reduce("SUM", strategy.run(replica_step, args=batch), axis=None)

    done = int(optimizer.iterations)
    endless = dataset.repeat(EPOCHS).skip(done)
    for batch in strategy.experimental_distribute_dataset(endless):
        say("steps")
        float(train_step(batch))
        done += 1
        if done % SAVE_STEPS == 0:
            say("save")
            if is_first:
                manager.save()
        if done % STEPS == 0:
            say("evaluation")
            float(strategy.reduce("MEAN", tf.reduce_mean(model(x[:48])), axis=None))


(fit if program == "fit" else loop)()
digest = hashlib.sha256()
variables = optimizer.variables() if callable(optimizer.variables) else optimizer.variables
for variable in [*model.variables, *variables]:
    digest.update(np.ascontiguousarray(tf.convert_to_tensor(variable).numpy()).tobytes())
print(f"digest {digest.hexdigest()[:16]}", flush=True)
