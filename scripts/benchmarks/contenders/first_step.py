"""Does one step and prints a line of JSON: when it was done.

python first_step.py WORK plain|none|grpc WORKER_INDEX

"plain" is the least program that does a step: TensorFlow, Keras 2, the model, a session. The others
are the Estimator, alone or as a worker of TF_CONFIG. The time is `time.monotonic()`, the same clock
for all processes of a machine: the process that started this one knows when.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from typing import Any

import turns


def main() -> None:
    name, engine, worker_index = sys.argv[1], sys.argv[2], int(sys.argv[3])
    turns.pin_to_own_core(worker_index)
    if engine == "plain":
        step_plainly(name, worker_index)
    else:
        step_with_estimator(name, engine, worker_index)


def step_plainly(name: str, worker_index: int) -> None:
    """Does a step in a session of TensorFlow's alone."""
    import keras_models as models
    import tensorflow as tf

    v1 = tf.compat.v1
    with tf.Graph().as_default():
        dataset = models.make_dataset(name, worker_index)
        features, labels = v1.data.make_one_shot_iterator(dataset).get_next()
        model = models.make_model(name)
        loss = models.loss_of(model, features, labels)
        optimizer = models.make_optimizer(name)
        train_op = optimizer.minimize(loss, var_list=model.trainable_variables)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run([train_op, loss])
            say_done()


def step_with_estimator(name: str, engine: str, worker_index: int) -> None:
    """Does a step of `Estimator.train`."""
    import estimators
    import keras_models as models
    import tensorflow as tf

    import tfdist.estimator as tfe
    from tfdist.strategies import MultiWorkerStrategy

    class SayDone(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
        def after_run(self, run_context: Any, run_values: Any) -> None:
            say_done()

    strategy = MultiWorkerStrategy() if engine == "grpc" else None
    with tempfile.TemporaryDirectory() as folder:
        config = tfe.RunConfig(train_distribute=strategy)
        estimator = tfe.Estimator(estimators.make_model_fn(name), folder, config)
        dataset = models.make_dataset
        estimator.train(lambda: dataset(name, worker_index), hooks=[SayDone()], steps=1)


def say_done() -> None:
    """Prints the line."""
    print(json.dumps({"done_s": time.monotonic()}), flush=True)


if __name__ == "__main__":
    main()
