"""TensorFlow's own way: MultiWorkerMirroredStrategy with a step of one's own in a tf.function.

python mirrored_step.py WORK WORKER_INDEX, with TF_CONFIG; without it there is one worker
"""

from __future__ import annotations

import os
import sys
from typing import Any

import turns


def main() -> None:
    name, worker_index = sys.argv[1], int(sys.argv[2])
    turns.pin_to_own_core(worker_index)
    import keras_models as models
    import tensorflow as tf
    import work as works
    from mirrored_strategy import make_strategy

    strategy = make_strategy()
    global_batch_size = works.WORKS[name].batch_size * strategy.num_replicas_in_sync
    with strategy.scope():
        model = models.make_model(name)
        optimizer = models.make_keras_optimizer(name)
    batches = iter(
        strategy.distribute_datasets_from_function(
            lambda context: models.make_dataset(name, context.input_pipeline_id)
        )
    )

    def replica_step(features: Any, labels: Any) -> None:
        with tf.GradientTape() as tape:
            losses = models.losses_of(model, features, labels)
            loss = tf.nn.compute_average_loss(losses, global_batch_size=global_batch_size)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    # Without a reduction of the loss, which would be one more message a step.
    @tf.function  # type: ignore[untyped-decorator]
    def train_step(iterator: Any) -> None:
        strategy.run(replica_step, args=next(iterator))

    num_parameters = models.num_parameters(model) if model.built else 0
    my_turns = turns.Turns(worker_index, num_parameters)
    while my_turns.goes_on():
        train_step(batches)
    os._exit(0)  # At a normal exit the strategy's workers may wait for one that has left already.


if __name__ == "__main__":
    main()
