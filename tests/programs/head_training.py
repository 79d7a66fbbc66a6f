"""A short training of each combination of head and optimizer, run by every strategy."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1
import tf_keras

import tfdist.estimator as tfe
from tfdist.strategies import strategy_for_run


@dataclass(frozen=True, kw_only=True)
class Case:
    """A combination: the kind of head, its loss reduction, and the optimizer."""

    kind: str
    reduction: str
    optimizer: str
    regularizes: bool


_MEAN, _SUM = "sum_over_batch_size", "sum"
_CASES = {
    "several, mean, Keras": Case(
        kind="multi", reduction=_MEAN, optimizer="legacy", regularizes=True
    ),
    "numbers, sum, v1": Case(kind="numbers", reduction=_SUM, optimizer="v1", regularizes=False),
    "binary, mean, v1": Case(kind="binary", reduction=_MEAN, optimizer="v1", regularizes=True),
    "binary, mean, Keras": Case(
        kind="binary", reduction=_MEAN, optimizer="newer", regularizes=True
    ),
    "numbers, sum, Keras": Case(
        kind="numbers", reduction=_SUM, optimizer="newer", regularizes=False
    ),
}
_OPTIMIZERS = {
    "v1": lambda: v1.train.MomentumOptimizer(0.05, 0.9),
    "legacy": lambda: tf_keras.optimizers.legacy.Adam(0.05),
    "newer": lambda: tf_keras.optimizers.SGD(0.05, momentum=0.9),
}


def train_heads(
    folder: str, local_batch: int, num_replicas: int | None = None, num_cases: int = len(_CASES)
) -> dict[str, dict[str, Any]]:
    """Trains the first combinations for 4 steps; returns the weights of each.

    Args:
      folder: The folder in which each gets a model_dir.
      local_batch: Of one worker or replica.
      num_replicas: Of this worker, with the strategy for the run; None trains without a strategy.
      num_cases: The number of combinations.
    """
    strategy = None if num_replicas is None else strategy_for_run(num_replicas=num_replicas)
    input_fn = _make_input_fn(local_batch)
    weights = {}
    for name, case in list(_CASES.items())[:num_cases]:
        model_dir = f"{folder}/{case.kind}_{case.reduction}_{case.optimizer}"
        config = tfe.RunConfig(train_distribute=strategy, save_checkpoints_steps=1000)
        estimator = tfe.Estimator(_model_fn, model_dir, config, params={"case": case})
        estimator.train(input_fn, max_steps=4)
        weights[name] = _read_weights(estimator)
    return weights


def _make_input_fn(local_batch: int) -> Callable[..., tf.data.Dataset]:
    random = np.random.RandomState(0)
    x = random.randn(64, 3).astype(np.float32)
    weight = random.rand(64, 1).astype(np.float32)
    labels = {
        "binary": random.randint(0, 2, (64, 1)),
        "classes": random.randint(0, 3, (64, 1)),
        "numbers": random.randn(64, 2).astype(np.float32),
    }

    def input_fn(input_context: Any = None) -> tf.data.Dataset:
        dataset = tf.data.Dataset.from_tensor_slices(({"x": x, "weight": weight}, labels))
        dataset = dataset.batch(local_batch)
        if input_context is None:
            return dataset
        return dataset.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)

    return input_fn


def _model_fn(features: Any, labels: Any, mode: str, params: Any) -> tfe.EstimatorSpec:
    case: Case = params["case"]
    head = _make_head(case.kind, case.reduction)
    dense = tf_keras.layers.Dense(head.logits_dimension, name="dense", kernel_initializer="ones")
    logits = dense(features["x"])  # [local_batch, logits_dimension]
    penalty = [0.01 * tf.reduce_sum(tf.square(dense.kernel))] if case.regularizes else None
    return head.create_estimator_spec(
        features=features,
        mode=mode,
        logits=logits,
        labels=labels if case.kind == "multi" else labels[case.kind],
        optimizer=_OPTIMIZERS[case.optimizer](),
        trainable_variables=dense.trainable_variables,
        regularization_losses=penalty,
    )


def _make_head(kind: str, reduction: str) -> tfe.Head:
    common: dict[str, Any] = {"weight_column": "weight", "loss_reduction": reduction}
    heads = {
        "binary": lambda: tfe.BinaryClassHead(name="binary", **common),
        "classes": lambda: tfe.MultiClassHead(3, name="classes", **common),
        "numbers": lambda: tfe.RegressionHead(2, name="numbers", **common),
    }
    if kind == "multi":
        return tfe.MultiHead([make() for make in heads.values()], [1.0, 0.5, 2.0])
    return heads[kind]()


def _read_weights(estimator: tfe.Estimator) -> dict[str, Any]:
    names = estimator.get_variable_names()  # Of worker 0's checkpoint.
    kept = [name for name in names if name.startswith(("dense", "global"))]
    weights = {name: estimator.get_variable_value(name) for name in kept}
    return {**weights, "number of variables": len(names)}
