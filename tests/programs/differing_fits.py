"""Two workers whose `fit` differs; as a script, in the way that the argument says."""

import sys
from typing import Any

if __name__ == "__main__":  # Keras does without these, and starts faster.
    sys.modules.update(dict.fromkeys(("pandas", "PIL", "scipy")))

import keras
import numpy as np
import tensorflow as tf

from tfdist.cluster.instances import find_instance
from tfdist.cluster.rendezvous import collective_calls
from tfdist.strategies import strategy_for_run
from tfdist.strategies.keras.comparison import FitsDifferError

BATCHES = 5
EPOCHS = 3


def data(batches: int) -> Any:
    rows = np.ones([4 * batches, 1], np.float32)
    return tf.data.Dataset.from_tensor_slices((rows, rows)).batch(4)


class Differs(keras.callbacks.Callback):  # type: ignore[misc]
    def __init__(self, way: str, is_other: bool) -> None:
        super().__init__()
        self.way, self.is_other = way, is_other

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == 1 and (self.is_other or self.way == "all stop in an epoch"):
            if self.way.endswith("stop in an epoch"):
                self.model.stop_training = True
            elif self.way == "StopIteration":
                raise StopIteration

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if epoch == 1 and self.is_other:
            if self.way == "stop after an epoch":
                self.model.stop_training = True
            elif self.way == "evaluate in a callback":
                self.model.evaluate(data(BATCHES), verbose=0)


def train(strategy: Any, way: str) -> Any:
    """Trains in a way; returns the model."""
    is_other = find_instance().index == 1
    with strategy.scope():
        model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
        loss = "mae" if is_other and way == "another loss" else "mse"
        metrics = ["mape" if is_other else "mae"] if way == "another metric" else None
        weights = 0.5 if is_other and way == "other weights" else 1.0
        model.compile("sgd", loss, loss_weights=[weights], metrics=metrics)
    epochs = EPOCHS + is_other * {"an epoch more": 1, "an epoch fewer": -1}.get(way, 0)
    batches = BATCHES + (is_other and way == "lengths")
    model.fit(data(batches), epochs=epochs, verbose=0, callbacks=[Differs(way, is_other)])
    if way == "evaluate after fit" and is_other:
        model.evaluate(data(BATCHES), verbose=0)
    return model


def train_all(ways: list[str]) -> dict[str, Any]:
    """Trains in each of these ways; returns the numbers of steps, or the errors' text."""
    strategy, ends = strategy_for_run(), {}
    for way in ways:
        try:
            ends[way] = int(train(strategy, way).optimizer.iterations)
        except FitsDifferError as error:
            ends[way] = str(error).partition(":")[0]
    return ends


if __name__ == "__main__":
    collective_calls._SETTLED_S = 1.0  # of 3
    train(strategy_for_run(), sys.argv[1])
