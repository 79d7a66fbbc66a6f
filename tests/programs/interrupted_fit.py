"""A small `fit` in this process, which an error ends after a step, as a kill does."""

import importlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfdist.strategies import LocalStrategy

ROWS, STEPS, EPOCHS = 40, 8, 3
X = np.random.RandomState(0).randn(ROWS, 2).astype(np.float32)
Y = np.abs(X[:, :1])


class InterruptionError(Exception):
    """Ends a training in the middle of it."""


def shuffled() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(ROWS, seed=3).batch(5)


INPUTS: dict[str, Callable[[], dict[str, Any]]] = {
    "shuffled": lambda: {"x": shuffled()},
    "in_an_endless_dataset": lambda: {"x": shuffled().repeat(), "steps_per_epoch": STEPS},
    "of_unknown_length": lambda: {"x": shuffled().unbatch().batch(5)},
    "arrays": lambda: {"x": X, "y": Y, "batch_size": 5},
}


@cache
def undisturbed(library: str, name: str = "shuffled", **options: Any) -> Any:
    """Returns the weights after a `fit` without interruptions, backups and snapshots."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("TFDIST_SNAPSHOT_STEPS", raising=False)
        return fit(library, None, INPUTS[name], **options)


def fit(
    library: str,
    folder: Path | None,
    make_input: Callable[[], dict[str, Any]],
    *,
    after: int | None = None,
    num_replicas: int = 1,
    save_freq: Any = 3,
    units: int = 3,
    decay: float = 1.0,
    has_norm: bool = False,
    **options: Any,
) -> Any:
    """Trains for three epochs of eight steps.

    Args:
      library: "keras" or "tf_keras".
      folder: The folder of the backup; None makes none.
      make_input: Returns the input, as arguments of `fit`.
      after: The step of this call after which an error ends it; None trains to the end.
      num_replicas: The number of replicas.
      save_freq: That of the backup.
      units: The units of the hidden layer.
      has_norm: Whether batches are normalized first.
      decay: What the learning rate is multiplied by after each epoch.
      **options: Other arguments of `fit`.

    Returns:
      The weights, or None after an interruption.
    """
    keras = importlib.import_module(library)

    class Interrupt(keras.callbacks.Callback):  # type: ignore[misc, name-defined]
        steps = 0

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.steps += 1
            if self.steps == after:
                raise InterruptionError

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            rate = self.model.optimizer.learning_rate
            rate.assign(np.float32(rate) * np.float32(decay))

    keras.utils.set_random_seed(1)
    with LocalStrategy(num_replicas).scope():
        layers = [keras.layers.Dense(units, activation="tanh"), keras.layers.Dense(1)]
        if has_norm:
            layers.insert(0, keras.layers.BatchNormalization())
        model = keras.Sequential([keras.Input([2]), *layers])
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    callbacks: list[Any] = [Interrupt()]
    if folder is not None:
        callbacks.insert(0, keras.callbacks.BackupAndRestore(str(folder), save_freq=save_freq))
    settings = {"epochs": EPOCHS, "verbose": 0, **make_input(), **options}
    try:
        model.fit(callbacks=callbacks, **settings)
    except InterruptionError:
        return None
    return [weight.tolist() for weight in model.get_weights()]
