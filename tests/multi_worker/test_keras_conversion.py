"""A converted Keras model trains on two workers as on one with both shares of each batch."""

from pathlib import Path
from typing import Any

import numpy as np


def _train(folder: str, engine: str) -> tuple[dict[str, Any], Any]:
    """Trains three steps of a sequential model; returns the metrics, and the kernel if chief."""
    import numpy as np
    import tensorflow as tf
    import tf_keras

    import tfdist.estimator as tfe
    from tfdist.strategies import HorovodStrategy

    strategy = HorovodStrategy() if engine == "horovod" else None
    x = np.random.RandomState(0).randn(8, 2).astype(np.float32)
    y = np.random.RandomState(1).randn(8, 1).astype(np.float32)

    def input_fn(input_context: Any = None) -> tf.data.Dataset:
        shares, mine = (2, strategy.extended.collectives.worker_index) if strategy else (1, 0)
        # A worker's own share of the one batch.
        return tf.data.Dataset.from_tensors((x[mine::shares], y[mine::shares])).repeat()

    regular = tf_keras.regularizers.l2(0.1)
    layers = [tf_keras.layers.Dense(1, input_shape=(2,), name="d", kernel_regularizer=regular)]
    model = tf_keras.Sequential(layers)
    # The workers' weights differ: those of worker 0 count.
    index = strategy.extended.collectives.worker_index if strategy else 0
    model.set_weights([np.full((2, 1), 0.5 + index), np.zeros(1)])
    model.compile(tf_keras.optimizers.Adam(0.1), "mse", metrics=["mae"])
    estimator = tfe.model_to_estimator(
        model,
        model_dir=folder,
        config=tfe.RunConfig(train_distribute=strategy),
        checkpoint_format="saver",
    )
    metrics, _ = tfe.train_and_evaluate(
        estimator, tfe.TrainSpec(input_fn, max_steps=3), tfe.EvalSpec(input_fn, steps=1)
    )
    kernel = estimator.get_variable_value("d/kernel") if estimator.config.is_chief else None
    return {name: float(value) for name, value in metrics.items()}, kernel


def test_two_workers_train_a_keras_model_as_one(fake_cluster: Any, tmp_path: Path) -> None:
    [(_, alone)] = fake_cluster.run(_train, str(tmp_path / "alone"), "none", engine="none")
    engine = "horovod"
    first, second = fake_cluster.run(_train, str(tmp_path / "two"), engine, engine=engine)
    np.testing.assert_allclose(first[1], alone, rtol=1e-5)
    assert second[1] is None
    assert first[0] == second[0] and first[0]["global_step"] == 3
