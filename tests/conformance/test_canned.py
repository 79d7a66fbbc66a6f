"""Canned estimators over two workers: weights as in one process with the double batch."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest


def _train_canned(model_dir: str, local_batch: int, start_dir: str | None) -> dict[str, Any]:
    """Trains some canned estimators for 4 steps; returns the weights of each.

    Args:
      model_dir: Where each gets a folder.
      local_batch: 6 is one worker of two.
      start_dir: The model_dir of a run whose first weights this one starts from.
    """
    import numpy as np
    import tensorflow as tf

    import tfdist.estimator as tfe
    from tfdist.strategies import MultiWorkerStrategy

    strategy = MultiWorkerStrategy() if local_batch == 6 else None
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

    age = tf.feature_column.numeric_column("age")
    word = tf.feature_column.categorical_column_with_vocabulary_list("word", ["a", "b", "c"])
    wide = [tf.feature_column.bucketized_column(age, [-0.5, 0.5]), word]
    deep = [age, tf.feature_column.embedding_column(word, 2)]

    def train(case: str, make: Any) -> dict[str, Any]:
        estimator = make(
            model_dir=f"{model_dir}/{case}",
            config=tfe.RunConfig(train_distribute=strategy, save_checkpoints_steps=1000),
            warm_start_from=start_dir and f"{start_dir}/{case}/model.ckpt-0",
        )
        estimator.train(input_fn, max_steps=4)
        return {name: estimator.get_variable_value(name) for name in estimator.get_variable_names()}

    return {
        "linear": train("linear", lambda **rest: tfe.LinearClassifier(wide, n_classes=3, **rest)),
        "dnn": train("dnn", lambda **rest: tfe.DNNClassifier([4], deep, n_classes=3, **rest)),
        "both": train(
            "both",
            lambda **rest: tfe.DNNLinearCombinedClassifier(
                linear_feature_columns=wide,
                dnn_feature_columns=deep,
                dnn_hidden_units=[4],
                n_classes=3,
                **rest,
            ),
        ),
        "v1 optimizer": train(
            "v1",
            lambda **rest: tfe.DNNClassifier(
                [4],
                deep,
                n_classes=3,
                optimizer=lambda: tf.compat.v1.train.AdamOptimizer(0.05),
                **rest,
            ),
        ),
    }


@pytest.mark.timeout(300)
def test_two_workers_with_a_canned_estimator_equal_one_with_the_double_batch(
    fake_cluster: Any, tmp_path: Path
) -> None:
    alone_dir = str(tmp_path / "alone")
    alone = fake_cluster.run(_train_canned, alone_dir, 12, None, engine="none", num_workers=1)[0]
    together = fake_cluster.run(
        _train_canned, str(tmp_path / "together"), 6, alone_dir, engine="grpc"
    )
    for case, weights in alone.items():
        assert weights["global_step"] == 4
        for name, value in weights.items():
            for worker in together:
                np.testing.assert_allclose(
                    worker[case][name], value, rtol=1e-6, atol=1e-6, err_msg=f"{case}, {name}"
                )
