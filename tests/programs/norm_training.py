"""Small trainings with batch normalisation, of which one process makes several in turn."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1
import tf_keras

import tfdist.estimator as tfe
from tfdist import training
from tfdist.strategies import HorovodStrategy, LocalStrategy, MultiWorkerStrategy

STEPS, ROWS = 3, 16


@dataclass(frozen=True, kw_only=True)
class Options:
    """One training.

    Attributes:
      layer: "tfdist", "v1", "tf_keras" (synchronized) or "own" (tf_keras, not synchronized).
      group_size: Of the first two.
      sizes: The batch size of each replica of all workers; together ROWS.
      iterations: Steps in a session call.
      offset: The mean of the inputs, whose deviation is 1.
      evaluates: Whether the chief evaluates afterwards, while the others go on.
    """

    layer: str = "tfdist"
    group_size: int | None = None
    sizes: Sequence[int] = (ROWS,)
    iterations: int = 1
    offset: float = 0.0
    evaluates: bool = False


def train_all(
    engine: str, folder: str, trainings: Sequence[dict[str, Any]], num_replicas: int = 1
) -> list[dict[str, Any]]:
    """Makes trainings in turn, over "grpc", "horovod" or, in one process, "none".

    Returns:
      For each training: values (all variables but slots at the end, by name, on this worker),
      messages (over gRPC, their number in the last step), evaluated (the loss that the chief
      finds, or None).
    """
    kinds = {"grpc": MultiWorkerStrategy, "horovod": HorovodStrategy, "none": LocalStrategy}
    strategy = kinds[engine](num_replicas=num_replicas)
    return [
        _train(strategy, str(Path(folder, str(number))), Options(**given))
        for number, given in enumerate(trainings)
    ]


def _train(strategy: Any, folder: str, options: Options) -> dict[str, Any]:
    config = tfe.RunConfig(
        train_distribute=strategy,
        device=tfe.DeviceConfig(iterations_per_loop=options.iterations),
    )
    watch = _Watch()
    estimator = tfe.Estimator(_model_fn, folder, config, params={"options": options})
    input_fn = _input_fn(options, strategy)
    estimator.train(input_fn, hooks=[watch], max_steps=STEPS)
    loss = None
    if options.evaluates and config.is_chief:
        loss = estimator.evaluate(_input_fn(options, None), steps=STEPS)["loss"]
    return {"values": watch.values, "messages": watch.messages, "evaluated": loss}


def _input_fn(options: Options, strategy: Any) -> Callable[..., tf.data.Dataset]:
    random = np.random.RandomState(0)
    numbers = (random.randn(STEPS, ROWS, 5) + options.offset).astype(np.float32)
    starts = np.cumsum([0, *options.sizes])
    slices = [slice(first, end) for first, end in itertools.pairwise(starts)]
    if strategy is None:
        slices = [slice(0, ROWS)]
    else:
        count, first = strategy.extended.placement.num_replicas, strategy.extended.collectives
        slices = slices[first.worker_index * count :][:count]

    def batches() -> Any:
        yield from (step[rows] for step in numbers for rows in slices)

    def input_fn(input_context: Any = None) -> tf.data.Dataset:
        signature = tf.TensorSpec([None, 5], tf.float32)
        return tf.data.Dataset.from_generator(batches, output_signature=signature)

    return input_fn


def _model_fn(features: tf.Tensor, mode: str, params: Any) -> tfe.EstimatorSpec:
    options: Options = params["options"]
    is_training = mode == tfe.ModeKeys.TRAIN
    updates = []

    def normalize(x: tf.Tensor, name: str) -> tf.Tensor:
        size = options.group_size
        if options.layer == "v1":
            return training.batch_normalization(
                x, 1, 0.5, training=is_training, name=name, group_size=size
            )
        if options.layer == "tfdist":
            layer = training.BatchNormalization(size, momentum=0.5, name=name)
        else:
            is_synchronized = options.layer == "tf_keras"
            layer = tf_keras.layers.BatchNormalization(
                momentum=0.5, synchronized=is_synchronized, name=name
            )
        y = layer(x, training=is_training)
        updates.extend(layer.updates)
        return y

    shift = v1.get_variable("shift", [5], initializer=v1.zeros_initializer())
    normal = normalize(features + shift, "first")  # [batch, 5]
    hidden = tf.nn.relu(tf.matmul(normal, _weight("kernel", 5, 4)))  # [batch, 4]
    output = tf.matmul(normalize(hidden, "second"), _weight("projection", 4, 2))  # [batch, 2]
    # Every row counts alike, also where batches have other sizes.
    rows = ROWS / (tf.distribute.get_strategy().num_replicas_in_sync if is_training else 1)
    target = tf.math.sin(features[:, :2] - options.offset)
    loss = tf.reduce_sum(tf.square(output - target)) / rows  # []
    if not is_training:
        return tfe.EstimatorSpec(mode, loss=loss)
    optimizer = v1.train.MomentumOptimizer(0.05, 0.9)
    with tf.control_dependencies([*updates, *v1.get_collection(v1.GraphKeys.UPDATE_OPS)]):
        train_op = optimizer.minimize(loss, v1.train.get_global_step())
    return tfe.EstimatorSpec(mode, loss=loss, train_op=train_op)


def _weight(name: str, rows: int, columns: int) -> tf.Variable:
    values = np.random.RandomState(len(name)).randn(rows, columns).astype(np.float32)
    return v1.get_variable(name, initializer=values)


class _Watch(v1.train.SessionRunHook):  # type: ignore[misc,name-defined]
    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.messages = 0

    def begin(self) -> None:
        names = {v.op.name: v for v in v1.global_variables() if "/Momentum" not in v.op.name}
        self.variables = {name: v.read_value() for name, v in names.items()}

    def before_run(self, run_context: Any) -> Any:
        options = v1.RunOptions(output_partition_graphs=True)
        return v1.train.SessionRunArgs([], options=options)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        graphs = run_values.run_metadata.partition_graphs
        self.messages = sum(node.op == "QueueEnqueueV2" for graph in graphs for node in graph.node)

    def end(self, session: Any) -> None:
        self.values = session.run(self.variables)
