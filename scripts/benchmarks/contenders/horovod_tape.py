"""Horovod's own way: a tape that reduces gradients, in a tf.function, with a Keras optimizer.

python horovod_tape.py WORK, under mpirun
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
    import tensorflow as tf

    # Horovod looks at tf.keras when it is imported: only now it is Keras 2 that it finds.
    hvd = importlib.import_module("horovod.tensorflow")
    hvd.init()
    model = models.make_model(name)
    optimizer = models.make_keras_optimizer(name)

    @tf.function  # type: ignore[untyped-decorator]
    def train_step(features: tf.Tensor, labels: tf.Tensor, is_first: bool) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = models.loss_of(model, features, labels)
        tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        if is_first:  # Not earlier: variables and slots exist after the first step only.
            hvd.broadcast_variables(model.variables, root_rank=0)
            hvd.broadcast_variables(optimizer.variables, root_rank=0)
        return loss

    batches = iter(models.make_dataset(name, worker_index))
    is_first = True
    my_turns = turns.Turns(worker_index)
    while my_turns.goes_on():
        train_step(*next(batches), is_first)
        is_first = False


if __name__ == "__main__":
    main()
