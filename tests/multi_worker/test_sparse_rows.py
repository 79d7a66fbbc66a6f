"""Sparse gradients with rows of equal index, updated by several threads."""

from typing import Any

import numpy as np


def _train_a_table() -> dict[str, Any]:
    """Trains a table by gradient descent, with words that occur again and again in a batch."""
    import numpy as np
    import tensorflow as tf
    import tensorflow.compat.v1 as v1
    from brief_training import Watch

    import tfdist.estimator as tfe
    from tfdist.strategies import MultiWorkerStrategy

    strategy = MultiWorkerStrategy()
    random = np.random.RandomState(strategy.extended.collectives.worker_index)
    words = random.randint(0, 50, [2048])

    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        table = v1.get_variable("table", [50, 64])
        rows = tf.nn.embedding_lookup(table, features)  # [2048, 64]
        loss = tf.reduce_mean(tf.square(rows - labels))
        optimizer = v1.train.GradientDescentOptimizer(100.0)
        step = v1.train.get_global_step()
        return tfe.EstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss, step))

    def input_fn() -> Any:
        labels = np.random.RandomState(0).randn(2048, 64).astype(np.float32)
        return tf.data.Dataset.from_tensors((words, labels)).repeat()

    watch = Watch()
    config = tfe.RunConfig(
        train_distribute=strategy,
        session_config=v1.ConfigProto(intra_op_parallelism_threads=4),
    )
    tfe.Estimator(model_fn, None, config).train(input_fn, hooks=[watch], steps=20)
    return {"words": words, "table": watch.values["table"]}


def test_workers_with_several_threads_add_equal_rows_in_one_order(fake_cluster: Any) -> None:
    one, other = fake_cluster.run(_train_a_table)
    assert not np.array_equal(one["words"], other["words"])
    assert one["table"].tobytes() == other["table"].tobytes()
