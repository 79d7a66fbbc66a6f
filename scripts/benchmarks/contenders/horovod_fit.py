"""Horovod's way for Keras: `model.fit` with its DistributedOptimizer.

python horovod_fit.py WORK, under mpirun
"""

from __future__ import annotations

import importlib
import os
import sys

import turns


def main() -> None:
    name = sys.argv[1]
    worker_index = int(os.environ["OMPI_COMM_WORLD_RANK"])
    turns.pin_to_own_core(worker_index)
    import keras_models as models

    # Horovod looks at tf.keras when it is imported: only now it is Keras 2 that it finds.
    hvd = importlib.import_module("horovod.tensorflow.keras")
    hvd.init()
    model = models.make_built_model(name)
    # A gradient in slices is reduced as a whole one: an embedding that is a decoder too has both.
    optimizer = hvd.DistributedOptimizer(models.make_keras_optimizer(name), sparse_as_dense=True)
    model.compile(
        optimizer=optimizer,
        loss=models.make_keras_loss(name),
        experimental_run_tf_function=False,  # Its documentation has it so.
    )
    broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    models.fit_in_turns(
        model, models.make_dataset(name, worker_index), worker_index, broadcast, end=hvd.shutdown
    )


if __name__ == "__main__":
    main()
