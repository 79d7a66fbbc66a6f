"""Horovod's way for Keras: `model.fit` with its DistributedOptimizer.

python horovod_fit.py WORK, under mpirun
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import turns

STEPS_PER_EPOCH = 10_000_000  # the turns end it earlier


def main() -> None:
    name = sys.argv[1]
    worker_index = int(os.environ["OMPI_COMM_WORLD_RANK"])
    turns.pin_to_own_core(worker_index)
    import keras_models as models
    import tensorflow as tf

    # Horovod looks at tf.keras when it is imported: only now it is Keras 2 that it finds.
    hvd = importlib.import_module("horovod.tensorflow.keras")
    hvd.init()

    class TakeTurns(tf.keras.callbacks.Callback):  # type: ignore[misc]
        # Else Keras would turn each step's loss into a number for it, which is not needed here.
        _supports_tf_logs = True

        def on_train_begin(self, logs: Any = None) -> None:
            self.turns = turns.Turns(worker_index, models.num_parameters(self.model))

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if not self.turns.goes_on():
                hvd.shutdown()
                os._exit(0)  # The end of `fit` is 10 million steps away.

    model = models.make_model(name)
    # A gradient in slices is reduced as a whole one: an embedding that is a decoder too has both.
    optimizer = hvd.DistributedOptimizer(models.make_keras_optimizer(name), sparse_as_dense=True)
    model.compile(
        optimizer=optimizer,
        loss=models.make_keras_loss(name),
        experimental_run_tf_function=False,  # Its documentation has it so.
    )
    model.fit(
        models.make_dataset(name, worker_index),
        steps_per_epoch=STEPS_PER_EPOCH,
        verbose=0,
        callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), TakeTurns()],
    )


if __name__ == "__main__":
    main()
