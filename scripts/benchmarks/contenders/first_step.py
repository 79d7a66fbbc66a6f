"""Does one step and prints a line of JSON: when it was done.

python first_step.py WORK plain|estimator|plain-fit|fit WORKER_INDEX

"plain" is the least program that does a step: TensorFlow, Keras 2, the model, a session.
"estimator" is tfdist's, "plain-fit" Keras 3's `fit` without a strategy, and "fit" the same in the
scope of tfdist's. Both of tfdist are alone, or a worker of TF_CONFIG. The time is
`time.monotonic()`, the same clock for all processes of a machine: the process that started this one
knows when.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from typing import Any

import turns


def main() -> None:
    name, way, worker_index = sys.argv[1], sys.argv[2], int(sys.argv[3])
    turns.pin_to_own_core(worker_index)
    {
        "plain": step_plainly,
        "estimator": step_with_estimator,
        "plain-fit": fit_plainly,
        "fit": fit_with_strategy,
    }[way](name, worker_index)


def step_plainly(name: str, worker_index: int) -> None:
    """Does a step in a session of TensorFlow's alone."""
    import keras_models as models
    import tensorflow as tf

    v1 = tf.compat.v1
    with tf.Graph().as_default():
        dataset = models.make_dataset(name, worker_index)
        features, labels = v1.data.make_one_shot_iterator(dataset).get_next()
        built = models.build(name, features, labels)
        train_op = built.optimizer.minimize(built.loss, var_list=built.variables)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run([train_op, built.loss])
            say_done()


def step_with_estimator(name: str, worker_index: int) -> None:
    """Does a step of `Estimator.train`."""
    import estimators
    import keras_models as models
    import tensorflow as tf

    import tfdist.estimator as tfe
    from tfdist.strategies import strategy_for_run

    class SayDone(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
        def after_run(self, run_context: Any, run_values: Any) -> None:
            say_done()

    with tempfile.TemporaryDirectory() as folder:
        strategy = strategy_for_run() if "TF_CONFIG" in os.environ else None
        config = tfe.RunConfig(train_distribute=strategy)
        estimator = tfe.Estimator(estimators.make_model_fn(name), folder, config)
        dataset = models.make_dataset
        estimator.train(lambda: dataset(name, worker_index), hooks=[SayDone()], steps=1)


def fit_plainly(name: str, worker_index: int) -> None:
    """Does a step of Keras 3's `fit`, without tfdist."""
    import tensorflow as tf

    _fit(name, worker_index, tf.distribute.get_strategy())


def fit_with_strategy(name: str, worker_index: int) -> None:
    """Does a step of Keras 3's `fit` in the scope of tfdist's strategy."""
    from tfdist.strategies import strategy_for_run

    _fit(name, worker_index, strategy_for_run())


def _fit(name: str, worker_index: int, strategy: Any) -> None:
    os.environ["TF_USE_LEGACY_KERAS"] = "0"
    import keras_models as models
    import tensorflow as tf

    class SayDone(tf.keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            say_done()

    with strategy.scope():
        model = models.make_model(name)
        model.compile(models.make_keras_optimizer(name), models.make_keras_loss(name))
    dataset = strategy.distribute_datasets_from_function(
        lambda context: models.make_dataset(name, context.input_pipeline_id)
    )
    model.fit(dataset, steps_per_epoch=1, verbose=0, callbacks=[SayDone()])


def say_done() -> None:
    """Prints the line."""
    print(json.dumps({"done_s": time.monotonic()}), flush=True)


if __name__ == "__main__":
    main()
