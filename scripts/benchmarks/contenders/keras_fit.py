"""TensorFlow 2 with a strategy: `model.fit`, or a loop of one's own in a tf.function.

python keras_fit.py WORK WORKER_INDEX grpc|horovod|mirrored|none keras|tf_keras fit|loop

The strategy is tfdist's over gRPC or Horovod; "mirrored" is TensorFlow's own
MultiWorkerMirroredStrategy, with TF_CONFIG or as one worker; "none" is a worker by itself.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import turns


def main() -> None:
    name, index, engine, library, way = sys.argv[1:6]
    worker_index = int(os.environ.get("OMPI_COMM_WORLD_RANK", index))
    turns.pin_to_own_core(worker_index)
    if library == "keras":
        os.environ["TF_USE_LEGACY_KERAS"] = "0"
    import keras_models as models

    strategy = _make_strategy(engine)
    with strategy.scope():
        model = models.make_built_model(name)
        optimizer = models.make_keras_optimizer(name)
        if way == "fit":
            model.compile(optimizer=optimizer, loss=models.make_keras_loss(name))
    dataset = strategy.distribute_datasets_from_function(
        lambda context: models.make_dataset(name, context.input_pipeline_id)
    )
    if way == "fit":
        models.fit_in_turns(model, dataset, worker_index)
    else:
        _loop(model, dataset, optimizer, strategy, worker_index)


def _make_strategy(engine: str) -> Any:
    if engine == "none":
        import tensorflow as tf

        return tf.distribute.get_strategy()
    if engine == "mirrored":
        from mirrored_strategy import make_strategy

        return make_strategy()
    from tfdist.strategies import HorovodStrategy, MultiWorkerStrategy

    return HorovodStrategy() if engine == "horovod" else MultiWorkerStrategy()


def _loop(model: Any, dataset: Any, optimizer: Any, strategy: Any, worker_index: int) -> None:
    import keras_models as models
    import tensorflow as tf

    def step(features: Any, labels: Any) -> None:
        with tf.GradientTape() as tape:
            loss = models.loss_of(model, features, labels) / strategy.num_replicas_in_sync
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    # Without a reduction of the loss, which would be one more message a step.
    @tf.function  # type: ignore[untyped-decorator]
    def train_step(iterator: Any) -> None:
        strategy.run(step, args=next(iterator))

    iterator = iter(dataset)
    my_turns = turns.Turns(worker_index, models.num_parameters(model))
    while my_turns.goes_on():
        train_step(iterator)
    os._exit(0)  # At a normal exit the strategy's workers may wait for one that has left already.


if __name__ == "__main__":
    main()
