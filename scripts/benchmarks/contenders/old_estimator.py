"""Training with tf.estimator itself, in TensorFlow 2.15, by MultiWorkerMirroredStrategy.

python old_estimator.py WORK WORKER_INDEX, with the Python of TensorFlow 2.15, and with TF_CONFIG;
without it there is one worker and no strategy
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
    from mirrored_strategy import make_strategy

    v1 = tf.compat.v1
    strategy = make_strategy() if "TF_CONFIG" in os.environ else None
    num_workers = strategy.num_replicas_in_sync if strategy else 1

    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        model = models.make_model(name)
        # The strategy adds gradients up.
        loss = models.loss_of(model, features, labels) / num_workers
        if mode == tf.estimator.ModeKeys.EVAL:
            return tf.estimator.EstimatorSpec(mode, loss=loss)
        updates = model.get_updates_for(None) + model.get_updates_for(features)
        with tf.control_dependencies(updates):
            train_op = models.make_optimizer(name).minimize(loss, v1.train.get_global_step())
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

    def input_fn(input_context: Any = None) -> tf.data.Dataset:
        return models.make_dataset(name, worker_index)

    # No worker is in a step at the end of a turn. At a normal end they wait for each other.
    hook = models.TakeTurns(worker_index, end=lambda run_context: os._exit(0))
    config = tf.estimator.RunConfig(train_distribute=strategy)
    # In the folder of this run, which the benchmark removes.
    estimator = tf.estimator.Estimator(model_fn, os.path.abspath(f"model-{worker_index}"), config)
    tf.estimator.train_and_evaluate(
        estimator,
        tf.estimator.TrainSpec(input_fn, hooks=[hook]),
        tf.estimator.EvalSpec(input_fn, steps=1),
    )


if __name__ == "__main__":
    main()
