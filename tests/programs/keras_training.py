"""Programs with Keras' callbacks, for one process or several workers."""

from __future__ import annotations

import hashlib
import io
import os
from contextlib import nullcontext, redirect_stderr
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

ROWS, BATCH, EPOCHS = 50, 12, 8


class _InterruptionError(Exception):
    """An error that ends a training in the middle."""


def train_with_callbacks(library: str, folder: str) -> dict[str, Any]:
    """Trains with the callbacks that write and decide, and returns what came of it."""
    keras = import_library(library)
    model, strategy = make_model(keras)
    index = strategy.extended.collectives.worker_index
    before = set(os.listdir(folder))
    is_keras_3 = library == "keras"
    saved = Path(folder, "best.keras" if is_keras_3 else "best.weights")
    callbacks = keras.callbacks
    history = model.fit(
        data(),
        epochs=EPOCHS,
        verbose=0,
        validation_data=data(),
        callbacks=[
            callbacks.ModelCheckpoint(
                str(saved), save_best_only=True, save_weights_only=not is_keras_3
            ),
            callbacks.BackupAndRestore(str(Path(folder, "backup"))),
            callbacks.CSVLogger(str(Path(folder, "log.csv"))),
            callbacks.TensorBoard(str(Path(folder, "board"))),
            callbacks.ReduceLROnPlateau(monitor="loss", patience=1, min_delta=0.02),
            callbacks.EarlyStopping(monitor="val_loss", patience=1, min_delta=0.01),
            callbacks.TerminateOnNaN(),
        ],
    )
    last_loss = float(model.evaluate(data(), verbose=0)[0])
    if index == 0 and strategy.num_replicas_in_sync > 1:
        model.save(str(Path(folder, "model.keras" if is_keras_3 else "model")))
    return {
        "epochs": len(history.epoch),
        "rate": float(np.asarray(model.optimizer.learning_rate)),
        "last_loss": last_loss,
        "wrote": sorted(set(os.listdir(folder)) - before) if index == 0 else [],
        **_described(model, history),
    }


def load(library: str, folder: str) -> dict[str, Any]:
    """Loads a saved model without a strategy, and evaluates it."""
    keras = import_library(library)
    name = "model.keras" if library == "keras" else "model"
    model = keras.models.load_model(str(Path(folder, name)))
    return {"loss": float(model.evaluate(data(), verbose=0)[0])}


def train_until(library: str, folder: str, last_step: int | None) -> dict[str, Any]:
    """Trains 4 epochs of 5 steps, shuffled, with backups after 4 steps each.

    An error ends it after a step.
    """
    keras = import_library(library)
    model, strategy = make_model(keras, build=True)
    own = Path(folder, f"worker_{strategy.extended.collectives.worker_index}")

    class Interrupt(keras.callbacks.Callback):  # type: ignore[misc, name-defined]
        steps = 0

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.steps += 1
            if self.steps == last_step:
                raise _InterruptionError

    interrupt = Interrupt()
    backup = keras.callbacks.BackupAndRestore(str(own / "backup"), save_freq=4)
    shuffled = data().unbatch().shuffle(ROWS, seed=2).batch(BATCH)
    try:
        history = model.fit(shuffled, epochs=4, verbose=0, callbacks=[backup, interrupt])
    except _InterruptionError:
        return {"steps": interrupt.steps}
    return {"steps": interrupt.steps, **_described(model, history)}


def go_on_in(library: str, folder: str, names: list[str]) -> dict[str, Any]:
    """Trains to the end in folders of these names, one after the other; returns also the output."""
    found = {}
    for name in names:
        with redirect_stderr(io.StringIO()) as said:
            found[name] = train_until(library, str(Path(folder, name)), None)
        found[name]["said"] = said.getvalue().splitlines()
    return found


def save_states(library: str, folder: str) -> dict[str, Any]:
    """Trains 2 epochs; worker 0 saves in each of `WAYS`."""
    keras = import_library(library)
    model, strategy = make_model(keras, build=True)
    model.fit(data(), epochs=2, verbose=0)
    if strategy.extended.should_checkpoint:
        model.save(_path(folder, "model"))
        model.save_weights(_path(folder, "weights"))
        _manager(model, folder).save()
    return {}


def go_on(library: str, folder: str, num_replicas: int | None) -> dict[str, Any]:
    """Restores what `save_states` has saved, each way, and trains an epoch more.

    Args:
      library: "keras" or "tf_keras".
      folder: Where the states are.
      num_replicas: The replicas of this worker; None trains without a strategy.
    """
    keras = import_library(library)
    found: dict[str, Any] = {}
    for way in WAYS:
        model, strategy = make_model(keras, build=True, num_replicas=num_replicas)
        if way == "model":
            with nullcontext() if strategy is None else strategy.scope():
                model = keras.models.load_model(_path(folder, way))
        elif way == "weights":  # Without the optimizer's state.
            model.load_weights(_path(folder, way))
        else:
            manager = _manager(model, folder)
            manager.checkpoint.restore(manager.latest_checkpoint).assert_existing_objects_matched()
        found[way] = _described(model, model.fit(data(), epochs=1, verbose=0))
    return found


WAYS = ("model", "weights", "checkpoint")


def _path(folder: str, way: str) -> str:
    return str(Path(folder, "state.keras" if way == "model" else "state.weights.h5"))


def _manager(model: Any, folder: str) -> Any:
    import tensorflow as tf

    state = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    return tf.train.CheckpointManager(state, str(Path(folder, "checkpoints")), max_to_keep=1)


def import_library(library: str) -> ModuleType:
    """Imports "keras" or "tf_keras", and sets its seeds."""
    if library == "keras":
        import keras
    else:
        import tf_keras as keras
    keras.utils.set_random_seed(3)
    return keras


def data() -> Any:
    """Returns a dataset of global batches, of which the last has two rows."""
    import tensorflow as tf

    rng = np.random.RandomState(0)
    x = rng.rand(ROWS, 6).astype(np.float32)
    y = (x.sum(1) > 3).astype(np.int64)
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)


def make_model(keras: Any, *, build: bool = False, num_replicas: int | None = 1) -> tuple[Any, Any]:
    """Returns a compiled model, and the strategy in whose scope it is; without replicas, None."""
    from tfdist.strategies import strategy_for_run

    strategy = None if num_replicas is None else strategy_for_run(num_replicas=num_replicas)
    with nullcontext() if strategy is None else strategy.scope():
        layers = [keras.layers.Dense(8, activation="relu"), keras.layers.Dense(2)]
        model = keras.Sequential([keras.Input([6]), *layers] if build else layers)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.5, momentum=0.9), loss, metrics=["accuracy"])
    return model, strategy


def _described(model: Any, history: Any) -> dict[str, Any]:
    weights = [np.asarray(weight) for weight in model.get_weights()]
    return {
        "weights": hashlib.sha256(b"".join(w.tobytes() for w in weights)).hexdigest(),
        "sums": [float(np.abs(w).sum()) for w in weights],
        "history": {name: [float(v) for v in values] for name, values in history.history.items()},
    }
