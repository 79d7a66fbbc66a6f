"""Starts with a model_dir in use: what worker 0 finds there decides for all workers."""

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def train() -> Any:
    """Trains in a worker, with a model_dir of its own; returns the last weight and step."""

    def train(folder: str, max_steps: int, warm_start_from: str | None = None) -> Any:
        import numpy as np
        import tensorflow as tf
        import tensorflow.compat.v1 as v1
        from brief_training import Watch

        import tfdist.estimator as tfe
        from tfdist.strategies import strategy_for_run

        strategy = strategy_for_run()
        index = strategy.extended.collectives.worker_index

        def model_fn(features: Any, labels: Any, mode: str) -> Any:
            weight = v1.get_variable("weight", [], initializer=v1.zeros_initializer())
            loss = tf.reduce_mean(tf.square(features * weight - labels))
            step = v1.train.get_global_step()
            train_op = v1.train.GradientDescentOptimizer(0.01).minimize(loss, step)
            return tfe.EstimatorSpec(mode, loss=loss, train_op=train_op)

        def input_fn() -> Any:
            return tf.data.Dataset.from_tensors((np.float32(1.0), np.float32(1.0))).repeat()

        watch = Watch()
        config = tfe.RunConfig(train_distribute=strategy)
        estimator = tfe.Estimator(
            model_fn, f"{folder}/{index}", config, warm_start_from=warm_start_from
        )
        metrics, _ = tfe.train_and_evaluate(
            estimator,
            tfe.TrainSpec(input_fn, max_steps=max_steps, hooks=[watch]),
            tfe.EvalSpec(input_fn, steps=1),
        )
        return watch.values.get("weight"), metrics["global_step"]

    return train


def test_a_finished_run_started_again_only_evaluates(
    fake_cluster: Any, train: Any, tmp_path: Path
) -> None:
    fake_cluster.run(train, str(tmp_path), 3)
    again = fake_cluster.run(train, str(tmp_path), 3)
    assert again == [(None, 3), (None, 3)]


def test_workers_start_warm_only_where_worker_0_finds_no_checkpoint(
    fake_cluster: Any, train: Any, tmp_path: Path
) -> None:
    import tensorflow as tf
    import tensorflow.compat.v1 as v1

    with tf.Graph().as_default(), v1.Session() as session:
        v1.get_variable("weight", initializer=0.9)
        session.run(v1.global_variables_initializer())
        old = str(v1.train.Saver().save(session, str(tmp_path / "old" / "model.ckpt")))
    first = fake_cluster.run(train, str(tmp_path), 1, old, engine="horovod")
    second = fake_cluster.run(train, str(tmp_path), 2, old, engine="horovod")
    for run, weight in ((first, 0.902), (second, 0.90396)):
        one, other = (seen for seen, _ in run)
        assert one == other == pytest.approx(weight)
