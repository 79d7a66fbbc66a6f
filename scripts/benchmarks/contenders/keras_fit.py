"""`tfdist` in TensorFlow 2: `model.fit`, or a loop of one's own.

python keras_fit.py WORK WORKER_INDEX grpc|horovod|mirrored|none keras|tf_keras fit|loop

"mirrored" is TensorFlow's own MultiWorkerMirroredStrategy, and "none" a worker by itself.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import turns

STEPS_PER_EPOCH = 10_000_000  # the turns end it earlier


def main() -> None:
    name, index, engine, library, way = sys.argv[1:6]
    worker_index = int(os.environ.get("OMPI_COMM_WORLD_RANK", index))
    turns.pin_to_own_core(worker_index)
    if library == "keras":
        os.environ["TF_USE_LEGACY_KERAS"] = "0"
    import keras_models as models

    strategy = _make_strategy(engine)
    with strategy.scope():
        model = models.make_model(name)
        optimizer = models.make_keras_optimizer(name)
        if way == "fit":
            model.compile(optimizer=optimizer, loss=models.make_keras_loss(name))
    dataset = strategy.distribute_datasets_from_function(
        lambda context: models.make_dataset(name, context.input_pipeline_id)
    )
    train = _fit if way == "fit" else _loop
    train(model, dataset, strategy, worker_index, name)


def _make_strategy(engine: str) -> Any:
    if engine == "none":
        import tensorflow as tf

        return tf.distribute.get_strategy()
    if engine == "mirrored":
        from mirrored_strategy import make_strategy

        return make_strategy()
    from tfdist.strategies import HorovodStrategy, MultiWorkerStrategy

    return HorovodStrategy() if engine == "horovod" else MultiWorkerStrategy()


def _fit(model: Any, dataset: Any, strategy: Any, worker_index: int, name: str) -> None:
    import tensorflow as tf

    class TakeTurns(tf.keras.callbacks.Callback):  # type: ignore[misc]
        # Else tf_keras would turn each step's loss into a number for it, which is not needed here.
        _supports_tf_logs = True

        def on_train_begin(self, logs: Any = None) -> None:
            self.turns = turns.Turns(worker_index)

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if not self.turns.goes_on():
                os._exit(0)  # The end of `fit` is 10 million steps away.

    model.fit(dataset, steps_per_epoch=STEPS_PER_EPOCH, verbose=0, callbacks=[TakeTurns()])


def _loop(model: Any, dataset: Any, strategy: Any, worker_index: int, name: str) -> None:
    import keras_models as models
    import tensorflow as tf

    with strategy.scope():
        optimizer = models.make_keras_optimizer(name)

    def step(features: Any, labels: Any) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = models.loss_of(model, features, labels) / strategy.num_replicas_in_sync
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function  # type: ignore[untyped-decorator]
    def train_step(iterator: Any) -> Any:
        return strategy.run(step, args=next(iterator))

    iterator = iter(dataset)
    my_turns = turns.Turns(worker_index)
    while my_turns.goes_on():
        train_step(iterator)
    os._exit(0)


if __name__ == "__main__":
    main()
