"""Canned estimators over workers and replicas: weights as in one with the double batch."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest


def _train_canned(
    model_dir: str, local_batch: int, start_dir: str | None, way: str | None = None
) -> dict[str, Any]:
    """Trains some canned estimators for 4 steps; returns the weights of each.

    Args:
      model_dir: Where each gets a folder.
      local_batch: Of one worker or replica.
      start_dir: The model_dir of a run whose first weights this one starts from.
      way: "grpc", "horovod" or "replicas"; None is one process without a strategy.
    """
    import numpy as np
    import tensorflow as tf

    import tfdist.estimator as tfe
    from tfdist.strategies import HorovodStrategy, LocalStrategy, MultiWorkerStrategy

    strategy = {
        None: lambda: None,
        "grpc": MultiWorkerStrategy,
        "horovod": HorovodStrategy,
        "replicas": lambda: LocalStrategy(2),
    }[way]()
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
            model_dir=f"{model_dir}/{way}/{case}",
            config=tfe.RunConfig(train_distribute=strategy, save_checkpoints_steps=1000),
            warm_start_from=start_dir and f"{start_dir}/None/{case}/model.ckpt-0",
        )
        estimator.train(input_fn, max_steps=4)
        if strategy is not None and strategy.extended.collectives.worker_index > 0:
            return {}  # Worker 0 has the checkpoint.
        return {name: estimator.get_variable_value(name) for name in estimator.get_variable_names()}

    def with_v1_optimizer(**rest: Any) -> Any:
        def optimizer() -> Any:
            return tf.compat.v1.train.AdamOptimizer(0.05)

        return tfe.DNNClassifier([4], deep, n_classes=3, optimizer=optimizer, **rest)

    def with_both(**rest: Any) -> Any:
        return tfe.DNNLinearCombinedClassifier(
            linear_feature_columns=wide,
            dnn_feature_columns=deep,
            dnn_hidden_units=[4],
            n_classes=3,
            **rest,
        )

    # The one with both parts has the linear and the deep estimators' towers and optimizers.
    cases: dict[str, Any] = {"both": with_both, "v1": with_v1_optimizer}
    chosen = cases if way in (None, "grpc") else {"both": cases["both"]}
    return {case: train(case, make) for case, make in chosen.items()}


@pytest.mark.timeout(300)
def test_two_that_train_a_canned_estimator_equal_one_with_the_double_batch(
    fake_cluster: Any, tmp_path: Path
) -> None:
    folder = str(tmp_path)
    alone = fake_cluster.run(_train_canned, folder, 12, None, engine="none")[0]
    for way, num_workers in (("grpc", 2), ("horovod", 2), ("replicas", 1)):
        engine = way if num_workers == 2 else "none"
        options = {"engine": engine, "num_workers": num_workers, "timeout_s": 120}
        together = fake_cluster.run(_train_canned, folder, 6, folder, way, **options)[0]
        for case in together:
            assert alone[case]["global_step"] == 4
            for name, value in alone[case].items():
                where = f"{way}, {case}, {name}"
                np.testing.assert_allclose(
                    together[case][name], value, rtol=1e-6, atol=1e-6, err_msg=where
                )
