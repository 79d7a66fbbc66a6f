"""A small training, run by every strategy: a network of two layers, with an embedding if asked."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1
import tf_keras
from variable_order import unordered_uses

import tfdist.estimator as tfe
from tfdist.strategies import HorovodStrategy, MultiWorkerStrategy
from tfdist.training import (
    LAMB,
    LARS,
    SGD,
    AdamW,
    ClippedOptimizer,
    DynamicLossScale,
    GradientAccumulationOptimizer,
    LossScaleOptimizer,
    batch_normalization,
    recompute,
)
from tfdist.training.precision import find_precision


@dataclass(frozen=True, kw_only=True)
class Options:
    """The differences between trainings.

    With a seed the initial weights are drawn with it; without one each worker's graph has another.
    With `is_weighted` the loss is a mean over 0 to 20 counts a row. The rows of the third step of
    16 rows, and the first 4 of the fourth, have none. With `normalizes` a batch norm over replicas
    takes the place of the first bias; with `recomputes` the layers before and behind it are
    recomputed. With `is_tied` the embedding is large, and the last layer multiplies by all of it.
    With `stop_at` the run ends after that step; with `resume_at` its input begins with
    that step, as that of a program that goes on from a checkpoint. With the policy "global" layers
    of tf_keras follow the precision.
    """

    optimizer: str = "sgd"
    steps: int = 6
    local_batch: int = 8
    iterations: int = 1
    variables_on_host: bool = True
    has_embedding: bool = False
    is_tied: bool = False
    uses_host_call: bool = True
    seed: int | None = None
    num_replicas: int = 1
    compression: str | None = None
    uses_tape: bool = False
    accumulation: int = 1
    is_weighted: bool = False
    weights: str = "float32"
    precision: str = "float32"
    policy: str | None = None  # Of layers of tf_keras, in place of the variables.
    bad_row: int | None = None  # The number of an example with which the loss overflows.
    is_clipped: bool = False
    is_scaled: bool = False
    recomputes: bool = False
    normalizes: bool = False
    reports: bool = False  # A training metric.
    stop_at: int | None = None
    resume_at: int = 0


def train(engine: str, model_dir: str, **given: Any) -> dict[str, Any]:
    """Trains over "grpc", "horovod" or, in one process, "none".

    Returns:
      losses: This worker's loss of each call. reported: That of all workers. values: All variables
      at the end, by name. placed: The kind and the device of each executed op, by name. scales: The
      loss scale after each call, if any. metrics: The training metric of each call, if any.
      unordered: The variables that a call may read and write in either order; there should be none.
    """
    options = Options(**given)
    kind = {"grpc": MultiWorkerStrategy, "horovod": HorovodStrategy}.get(engine)
    strategy = kind and kind(
        variables_on_host=options.variables_on_host,
        num_replicas=options.num_replicas,
        compression=options.compression,
    )
    worker = 0 if strategy is None else strategy.extended.collectives.worker_index
    config = tfe.RunConfig(
        tf_random_seed=options.seed or 7 + worker,
        train_distribute=strategy,
        save_checkpoints_steps=1000,
        device=tfe.DeviceConfig(
            iterations_per_loop=options.iterations,
            variables_on_host=options.variables_on_host,
            num_replicas=options.num_replicas if strategy is None else 1,
            gradient_accumulation=options.accumulation if options.uses_host_call else 1,
            precision=options.precision,
        ),
    )
    watch = _Watch()
    estimator = tfe.Estimator(_model_fn, model_dir, config, params={"options": options})
    estimator.train(
        _make_input_fn(options), hooks=[watch], max_steps=options.stop_at or options.steps
    )
    return {
        "losses": watch.losses,
        "reported": watch.reported,
        "values": watch.values,
        "placed": watch.placed,
        "scales": watch.scales,
        "metrics": watch.metrics,
        "unordered": watch.unordered,
    }


def _make_input_fn(options: Options) -> Callable[..., tf.data.Dataset]:
    random = np.random.RandomState(0)
    rows = options.steps * 64
    words = random.randint(0, 20, (rows, 3)).astype(np.int32)
    numbers = random.randn(rows, 5).astype(np.float32)
    targets = random.randn(rows, 2).astype(np.float32)
    counts = random.randint(1, 21, rows).astype(np.float32)
    counts[32:52] = 0
    if options.bad_row is not None:
        numbers[options.bad_row] = 1e30

    def input_fn(input_context: Any = None) -> tf.data.Dataset:
        features = {"words": words, "numbers": numbers, "counts": counts}
        dataset = tf.data.Dataset.from_tensor_slices((features, targets))
        parts = dataset.batch(options.local_batch, drop_remainder=options.is_tied)
        parts = parts.skip(options.resume_at * options.accumulation * options.num_replicas)
        if input_context is None:
            return parts
        # Worker i reads the i-th part of each global batch.
        return parts.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)

    return input_fn


def _model_fn(features: Any, labels: Any, mode: str, params: Any) -> tfe.EstimatorSpec:
    options: Options = params["options"]
    with tf.GradientTape() if options.uses_tape else nullcontext() as tape:
        error = tf.square(_output(features, options) - labels)  # [local_batch, 2]
        loss, weight = tf.reduce_mean(error), None  # []
        first = tf.reduce_mean(error[:, 0])  # []
        if options.is_weighted:
            weight = tf.reduce_sum(features["counts"])  # []
            loss = tf.reduce_sum(tf.reduce_mean(error, axis=1) * features["counts"]) / weight
            first = tf.reduce_sum(error[:, 0] * features["counts"]) / weight
        # A tape and a Keras optimizer do not divide the loss by the number of replicas.
        whole = loss / tf.distribute.get_strategy().num_replicas_in_sync
    weights = v1.trainable_variables()
    optimizer = _optimizer(options)
    if options.uses_tape:
        pairs = list(zip(tape.gradient(whole, weights), weights, strict=True))
    elif not options.uses_host_call:
        if options.accumulation > 1:
            optimizer = GradientAccumulationOptimizer(optimizer, options.accumulation)
        train_op = optimizer.minimize(loss, global_step=v1.train.get_global_step())
        return tfe.EstimatorSpec(mode, loss=loss, train_op=train_op)
    elif options.optimizer == "keras":
        pairs = list(zip(tf.gradients(whole, weights), weights, strict=True))
    else:
        pairs = optimizer.compute_gradients(loss)

    def apply_on_host(*gradients: Any) -> tf.Operation:
        update = optimizer.apply_gradients(zip(gradients, [v for _, v in pairs], strict=True))
        return tf.group(update, *v1.get_collection(v1.GraphKeys.UPDATE_OPS))

    host_call = (apply_on_host, [g for g, _ in pairs])
    metrics = {"error/of_first": first} if options.reports else None
    return tfe.EstimatorSpec(
        mode, loss=loss, host_call=host_call, loss_weight=weight, training_metrics=metrics
    )


def _optimizer(options: Options) -> Any:
    optimizer = {
        "sgd": lambda: v1.train.GradientDescentOptimizer(0.1),
        "momentum": lambda: v1.train.MomentumOptimizer(0.1, 0.9),
        "adam": lambda: v1.train.AdamOptimizer(0.01),
        "scaled": lambda: LossScaleOptimizer(
            ClippedOptimizer(LAMB(0.05, weight_decay=0.1), global_norm=0.1),
            DynamicLossScale(growth_steps=2),
        ),
        "keras": lambda: tf.keras.optimizers.legacy.SGD(0.1, momentum=0.9),
        "SGD": lambda: SGD(0.1, momentum=0.9),
        "AdamW": lambda: AdamW(0.01, weight_decay=0.1),
        "LAMB": lambda: LAMB(0.05, weight_decay=0.1),
        "LARS": lambda: LARS(0.1, weight_decay=0.1, eeta=0.1),
    }[options.optimizer]()
    if options.is_clipped:
        optimizer = ClippedOptimizer(optimizer, global_norm=0.1)
    if options.is_scaled:
        optimizer = LossScaleOptimizer(optimizer, DynamicLossScale(growth_steps=2))
    return optimizer


def _output(features: Any, options: Options) -> tf.Tensor:
    if options.policy is not None:
        start = tf_keras.initializers.GlorotUniform(seed=3)
        policy = None if options.policy == "global" else options.policy
        hidden = tf_keras.layers.Dense(
            4, "relu", name="first", kernel_initializer=start, dtype=policy
        )
        last = tf_keras.layers.Dense(2, name="last", kernel_initializer=start, dtype="float32")
        return last(hidden(features["numbers"]))

    tables: list[tf.Tensor] = []

    def first() -> tf.Tensor:
        numbers = tf.cast(features["numbers"], find_precision(options.precision).compute)
        hidden = tf.matmul(numbers, _variable("first", [5, 4], options))
        if options.has_embedding:
            table = _variable("table_of_words", [40_000 if options.is_tied else 20, 4], options)
            tables.append(table)
            hidden += tf.reduce_mean(tf.nn.embedding_lookup(table, features["words"]), axis=1)
        return hidden  # [local_batch, 4]

    def last(hidden: tf.Tensor) -> tf.Tensor:
        if not options.normalizes:
            hidden += _variable("bias_of_first", [4], options)
        output = tf.matmul(tf.nn.relu(hidden), _variable("second_", [4, 2], options))
        if options.is_tied:
            scores = tf.matmul(hidden, tables[0], transpose_b=True)  # [local_batch, words]
            output += tf.reduce_mean(tf.nn.tanh(scores), axis=1, keepdims=True)
        return output  # [local_batch, 2]

    if options.recomputes:
        first, last = recompute(first), recompute(last)
    hidden = first()
    if options.normalizes:
        hidden = batch_normalization(hidden, momentum=0.5, training=True, name="normal")
    return tf.cast(last(hidden), tf.float32)  # [local_batch, 2]


def _variable(name: str, shape: list[int], options: Options) -> Any:
    if options.seed is None:
        values = np.random.RandomState(len(name)).randn(*shape).astype(np.float32)
        initializer = v1.constant_initializer(values)
    else:
        initializer = v1.random_normal_initializer(seed=options.seed)
    variable = v1.get_variable(name, shape, options.weights, initializer=initializer)
    return variable if options.weights == "float32" else tf.cast(variable, tf.float32)


class _Watch(v1.train.SessionRunHook):  # type: ignore[misc,name-defined]
    def __init__(self) -> None:
        self.losses: list[float] = []
        self.reported: list[float] = []
        self.values: dict[str, Any] = {}
        self.placed: dict[str, tuple[str, str]] = {}
        self.scales: list[float] = []
        self.metrics: list[float] = []
        self.unordered: list[tuple[str, str, str]] = []

    def begin(self) -> None:
        named = {op.name for op in v1.get_default_graph().get_operations()}
        self.fetched = ["error/of_first:0"] if "error/of_first" in named else []
        self.loss = v1.get_default_graph().get_collection(v1.GraphKeys.LOSSES)[-1]
        self.variables = {v.op.name: v for v in v1.global_variables()}

    def before_run(self, run_context: Any) -> Any:
        options = v1.RunOptions(output_partition_graphs=not self.losses)  # Those of the first call.
        train_op = run_context.original_args.fetches[0]
        if not self.losses:
            self.unordered = unordered_uses([train_op])
        of_all = run_context.original_args.fetches[1]
        return v1.train.SessionRunArgs([self.loss, of_all, *self.fetched], options=options)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.losses.append(float(run_values.results[0]))
        self.reported.append(float(run_values.results[1]))
        self.metrics += map(float, run_values.results[2:])
        if "loss_scale/scale" in self.variables:
            scale = run_context.session.run(self.variables["loss_scale/scale"])
            self.scales.append(float(scale))
        for graph in run_values.run_metadata.partition_graphs:
            for node in graph.node:
                self.placed[node.name] = (node.op, node.device)

    def end(self, session: Any) -> None:
        self.values.update(session.run(self.variables))
