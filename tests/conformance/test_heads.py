"""Heads over workers and replicas: weights as in one with the double batch."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest


def _train_heads(
    folder: str, local_batch: int, way: str | None = None
) -> dict[str, dict[str, Any]]:
    """Trains each combination of head and optimizer for 4 steps; returns the weights of each.

    Args:
      folder: Where each gets a model_dir.
      local_batch: Of one worker or replica.
      way: "grpc", "horovod" or "replicas"; None is one process without a strategy.
    """
    import numpy as np
    import tensorflow as tf
    import tensorflow.compat.v1 as v1
    import tf_keras

    import tfdist.estimator as tfe
    from tfdist.strategies import HorovodStrategy, LocalStrategy, MultiWorkerStrategy

    strategy = {
        None: lambda: None,
        "grpc": MultiWorkerStrategy,
        "horovod": HorovodStrategy,
        "replicas": lambda: LocalStrategy(2),
    }[way]()
    model_dir = f"{folder}/{way}"
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

    def make_head(kind: str, reduction: str) -> tfe.Head:
        common: dict[str, Any] = {"weight_column": "weight", "loss_reduction": reduction}
        heads = {
            "binary": lambda: tfe.BinaryClassHead(name="binary", **common),
            "classes": lambda: tfe.MultiClassHead(3, name="classes", **common),
            "numbers": lambda: tfe.RegressionHead(2, name="numbers", **common),
        }
        if kind == "multi":
            return tfe.MultiHead([make() for make in heads.values()], [1.0, 0.5, 2.0])
        return heads[kind]()

    optimizers = {
        "v1": lambda: v1.train.MomentumOptimizer(0.05, 0.9),
        "legacy": lambda: tf_keras.optimizers.legacy.Adam(0.05),
        "newer": lambda: tf_keras.optimizers.SGD(0.05, momentum=0.9),
    }

    def train(kind: str, reduction: str, optimizer: str, regularizes: bool) -> dict[str, Any]:
        def model_fn(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
            head = make_head(kind, reduction)
            dense = tf_keras.layers.Dense(
                head.logits_dimension, name="dense", kernel_initializer="ones"
            )
            logits = dense(features["x"])
            penalty = [0.01 * tf.reduce_sum(tf.square(dense.kernel))] if regularizes else None
            return head.create_estimator_spec(
                features=features,
                mode=mode,
                logits=logits,
                labels=labels if kind == "multi" else labels[kind],
                optimizer=optimizers[optimizer](),
                trainable_variables=dense.trainable_variables,
                regularization_losses=penalty,
            )

        config = tfe.RunConfig(train_distribute=strategy, save_checkpoints_steps=1000)
        folder = f"{model_dir}/{kind}_{reduction}_{optimizer}"
        estimator = tfe.Estimator(model_fn, folder, config)
        estimator.train(input_fn, max_steps=4)
        names = estimator.get_variable_names()  # Of worker 0's checkpoint.
        kept = [n for n in names if n.startswith(("dense", "global"))]
        weights = {name: estimator.get_variable_value(name) for name in kept}
        return {**weights, "number of variables": len(names)}

    mean, total = "sum_over_batch_size", "sum"
    cases: dict[str, tuple[str, str, str, bool]] = {
        "several, mean, Keras": ("multi", mean, "legacy", True),
        "numbers, sum, v1": ("numbers", total, "v1", False),
        "binary, mean, v1": ("binary", mean, "v1", True),
        "binary, mean, Keras": ("binary", mean, "newer", True),
        "numbers, sum, Keras": ("numbers", total, "newer", False),
    }
    # A head knows the number of replicas, and not their strategy: one way goes through all cases.
    chosen = list(cases) if way in (None, "grpc") else list(cases)[:2]
    return {case: train(*cases[case]) for case in chosen}


@pytest.mark.timeout(200)
def test_two_that_train_with_a_head_equal_one_with_the_double_batch(
    fake_cluster: Any, tmp_path: Path
) -> None:
    folder = str(tmp_path)
    alone = fake_cluster.run(_train_heads, folder, 12, engine="none")[0]
    for way, num_workers in (("grpc", 2), ("horovod", 2), ("replicas", 1)):
        engine = way if num_workers == 2 else "none"
        options = {"engine": engine, "num_workers": num_workers, "timeout_s": 120}
        together = fake_cluster.run(_train_heads, folder, 6, way, **options)[0]
        assert len(together) == (5 if way == "grpc" else 2)
        for case in together:
            assert alone[case]["global_step"] == 4
            for name, value in alone[case].items():
                where = f"{way}, {case}, {name}"
                np.testing.assert_allclose(
                    together[case][name], value, rtol=1e-6, atol=1e-6, err_msg=where
                )
