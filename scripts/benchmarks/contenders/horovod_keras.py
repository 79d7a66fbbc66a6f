"""Horovod's own ways with Keras: `fit` with its DistributedOptimizer, or its tape in a tf.function.

python horovod_keras.py WORK fit|tape, under mpirun
"""

from __future__ import annotations

import os
import sys

import turns


def main() -> None:
    name, way = sys.argv[1:3]
    worker_index = int(os.environ["OMPI_COMM_WORLD_RANK"])
    turns.pin_to_own_core(worker_index)
    # Horovod looks at tf.keras when it is imported: after this import it finds Keras 2.
    import keras_models  # noqa: F401

    (fit if way == "fit" else loop)(name, worker_index)


def fit(name: str, worker_index: int) -> None:
    """Trains by `fit`."""
    import horovod.tensorflow.keras as hvd
    import keras_models as models

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


def loop(name: str, worker_index: int) -> None:
    """Trains with a Keras optimizer and a tape that reduces gradients."""
    import horovod.tensorflow as hvd
    import keras_models as models
    import tensorflow as tf

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
