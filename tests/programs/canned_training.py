"""A short training of canned estimators, run by every strategy."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import tfdist.estimator as tfe
from tfdist.strategies import strategy_for_run


def train_canned(
    model_dir: str, local_batch: int, start_dir: str | None = None, num_replicas: int | None = None
) -> dict[str, Any]:
    """Trains some canned estimators for 4 steps; returns the weights of each.

    Args:
      model_dir: The folder in which each gets a folder.
      local_batch: Of one worker or replica.
      start_dir: The model_dir of a run whose first weights this one starts from.
      num_replicas: Of this worker, with the strategy for the run; None trains without a strategy.
    """
    strategy = None if num_replicas is None else strategy_for_run(num_replicas=num_replicas)
    # The one with both parts has the linear and the deep estimators' towers and optimizers.
    cases = {"both": _with_both, "v1": _with_v1_optimizer}
    weights = {}
    for case in ["both"] if num_replicas == 1 else cases:
        estimator = cases[case](
            model_dir=f"{model_dir}/{case}",
            config=tfe.RunConfig(
                train_distribute=strategy,
                save_checkpoints_steps=1000,
                # Adam divides a gradient by its size: one that happens to be near 0 shows rounding.
                tf_random_seed=1,
            ),
            warm_start_from=start_dir and f"{start_dir}/{case}/model.ckpt-0",
        )
        estimator.train(_make_input_fn(local_batch), max_steps=4)
        weights[case] = {}
        if estimator.config.is_chief:  # It has the checkpoint.
            names = estimator.get_variable_names()
            weights[case] = {name: estimator.get_variable_value(name) for name in names}
    return weights


def _make_input_fn(local_batch: int) -> Callable[..., tf.data.Dataset]:
    random = np.random.RandomState(0)
    features = {
        "age": random.randn(64, 1).astype(np.float32),
        "word": random.choice(["a", "b", "c"], (64, 1)),
    }
    labels = random.randint(0, 3, (64, 1))

    def input_fn(input_context: Any = None) -> tf.data.Dataset:
        dataset = tf.data.Dataset.from_tensor_slices((features, labels)).batch(local_batch)
        if input_context is None:
            return dataset
        return dataset.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)

    return input_fn


def _columns() -> tuple[list[Any], list[Any]]:
    """Returns the columns of the linear part and of the deep part."""
    age = tf.feature_column.numeric_column("age")
    word = tf.feature_column.categorical_column_with_vocabulary_list("word", ["a", "b", "c"])
    wide = [tf.feature_column.bucketized_column(age, [-0.5, 0.5]), word]
    return wide, [age, tf.feature_column.embedding_column(word, 2)]


def _with_v1_optimizer(**rest: Any) -> tfe.Estimator:
    def optimizer() -> Any:
        return tf.compat.v1.train.AdamOptimizer(0.05)

    return tfe.DNNClassifier([4], _columns()[1], n_classes=3, optimizer=optimizer, **rest)


def _with_both(**rest: Any) -> tfe.Estimator:
    wide, deep = _columns()
    return tfe.DNNLinearCombinedClassifier(
        linear_feature_columns=wide,
        dnn_feature_columns=deep,
        dnn_hidden_units=[4],
        n_classes=3,
        **rest,
    )
