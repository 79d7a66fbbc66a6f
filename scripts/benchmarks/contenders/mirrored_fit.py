"""Keras's own way: `model.fit` under MultiWorkerMirroredStrategy.

python mirrored_fit.py WORK WORKER_INDEX, with TF_CONFIG
"""

from __future__ import annotations

import os
import sys
from typing import Any

import turns

STEPS_PER_EPOCH = 10_000_000  # the turns end it earlier


def main() -> None:
    name, worker_index = sys.argv[1], int(sys.argv[2])
    turns.pin_to_own_core(worker_index)
    import keras_models as models
    import tensorflow as tf
    from mirrored_strategy import make_strategy

    class TakeTurns(tf.keras.callbacks.Callback):  # type: ignore[misc]
        # Else Keras would turn each step's loss into a number for it, which is not needed here.
        _supports_tf_logs = True

        def on_train_begin(self, logs: Any = None) -> None:
            self.turns = turns.Turns(worker_index)

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if not self.turns.goes_on():
                os._exit(0)  # No worker is in a step now; the end of `fit` waits for all.

    strategy = make_strategy()
    with strategy.scope():
        model = models.make_model(name)
        model.compile(
            optimizer=models.make_keras_optimizer(name),
            loss=models.make_keras_loss(name),
        )
    dataset = strategy.distribute_datasets_from_function(
        lambda context: models.make_dataset(name, context.input_pipeline_id)
    )
    model.fit(dataset, steps_per_epoch=STEPS_PER_EPOCH, verbose=0, callbacks=[TakeTurns()])


if __name__ == "__main__":
    main()
