"""A checkpoint that does not fit the model is refused on every worker, before the first step."""

from pathlib import Path
from typing import Any

import pytest


def _train(engine: str, folder: str, units: int) -> str | None:
    """Trains a layer of so many units for three steps; returns the line that it ends with."""
    import tensorflow as tf
    import tensorflow.compat.v1 as v1

    import tfdist.estimator as tfe
    from tfdist.process.endings import line_for
    from tfdist.strategies import HorovodStrategy, MultiWorkerStrategy

    strategy = {"grpc": MultiWorkerStrategy, "horovod": HorovodStrategy}[engine]()
    worker = strategy.extended.collectives.worker_index

    def model_fn(features: Any, mode: str) -> tfe.EstimatorSpec:
        kernel = v1.get_variable("kernel", [2, units], initializer=v1.ones_initializer())
        loss = tf.reduce_mean(tf.matmul(features, kernel))
        step = v1.train.get_global_step()
        train_op = v1.train.MomentumOptimizer(0.1, 0.9).minimize(loss, step)
        return tfe.EstimatorSpec(mode, loss=loss, train_op=train_op)

    config = tfe.RunConfig(train_distribute=strategy)
    estimator = tfe.Estimator(model_fn, f"{folder}/{worker}", config)
    try:
        estimator.train(lambda: tf.data.Dataset.from_tensors(tf.ones([1, 2])).repeat(), steps=3)
    except Exception as error:
        return line_for(error) or repr(error)
    return None


@pytest.mark.parametrize("engine", ["grpc", "horovod"])
def test_every_worker_refuses_what_worker_0s_checkpoint_does_not_fit(
    fake_cluster: Any, tmp_path: Path, engine: str
) -> None:
    options = {"engine": engine, "num_workers": 2}
    folder = str(tmp_path)
    assert fake_cluster.run(_train, engine, folder, 3, **options) == [None, None]
    before = {file.name: file.read_bytes() for file in (tmp_path / "0").glob("*ckpt*")}
    expected = (
        f"CheckpointMismatchError: Checkpoint {folder}/0/model.ckpt-3 does not fit the model: "
        "kernel is float32 [2, 3] in the checkpoint and float32 [2, 5] in the model "
        "(variables that differ: 2 of 3). Use another model_dir, or the model that wrote the "
        "checkpoint."
    )
    assert fake_cluster.run(_train, engine, folder, 5, **options) == [expected, expected]
    assert {file.name: file.read_bytes() for file in (tmp_path / "0").glob("*ckpt*")} == before
