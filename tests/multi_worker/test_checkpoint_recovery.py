"""Recovery of all workers from the same older checkpoint if worker 0's newest is damaged."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

ENGINES = ["grpc", "horovod"]


def _train(engine: str, folder: str, max_steps: int) -> dict[str, Any]:
    """Trains with a model_dir of its own; tells the first step, the last weights, or the error."""
    import tensorflow as tf
    import tensorflow.compat.v1 as v1

    import tfdist.estimator as tfe
    from tfdist.process.endings import OneLineError, line_for
    from tfdist.strategies import HorovodStrategy, MultiWorkerStrategy

    strategy = {"grpc": MultiWorkerStrategy, "horovod": HorovodStrategy}[engine]()
    worker = strategy.extended.collectives.worker_index

    def model_fn(features: Any, mode: str) -> tfe.EstimatorSpec:
        kernel = v1.get_variable("kernel", [2, 3], initializer=v1.ones_initializer())
        loss = tf.reduce_mean(tf.matmul(features, kernel) ** 2)
        step = v1.train.get_global_step()
        train_op = v1.train.MomentumOptimizer(0.1, 0.9).minimize(loss, step)
        return tfe.EstimatorSpec(mode, loss=loss, train_op=train_op)

    class Watch(v1.train.SessionRunHook):  # type: ignore[misc,name-defined]
        def begin(self) -> None:
            [self.kernel] = v1.trainable_variables()

        def after_create_session(self, session: Any, coord: Any) -> None:
            self.first_step = int(session.run(v1.train.get_global_step()))

        def end(self, session: Any) -> None:
            self.weights = session.run(self.kernel)

    watch = Watch()
    config = tfe.RunConfig(train_distribute=strategy, save_checkpoints_steps=2)
    estimator = tfe.Estimator(model_fn, f"{folder}/{worker}", config)
    try:
        estimator.train(
            lambda: tf.data.Dataset.from_tensors(tf.ones([1, 2])).repeat(),
            hooks=[watch],
            max_steps=max_steps,
        )
    except OneLineError as error:
        return {"error": line_for(error)}
    return {"first_step": watch.first_step, "weights": watch.weights}


@pytest.mark.parametrize("engine", ENGINES)
def test_all_workers_go_on_from_the_newest_whole_checkpoint_of_worker_0(
    fake_cluster: Any, tmp_path: Path, engine: str
) -> None:
    options = {"engine": engine, "num_workers": 2}
    whole = fake_cluster.run(_train, engine, str(tmp_path / "whole"), 6, **options)
    folder = tmp_path / "damaged"
    fake_cluster.run(_train, engine, str(folder), 4, **options)
    (folder / "0" / "model.ckpt-4.index").write_bytes(b"")
    answers = fake_cluster.run(_train, engine, str(folder), 6, **options)
    assert [answer["first_step"] for answer in answers] == [2, 2]
    for answer in answers:
        np.testing.assert_array_equal(answer["weights"], whole[0]["weights"])
    assert (folder / "0" / "damaged-model.ckpt-4.index").exists()


@pytest.mark.parametrize("engine", ENGINES)
def test_every_worker_ends_with_the_list_where_none_is_whole(
    fake_cluster: Any, tmp_path: Path, engine: str
) -> None:
    options = {"engine": engine, "num_workers": 2}
    fake_cluster.run(_train, engine, str(tmp_path), 2, **options)
    for step in (0, 2):
        (tmp_path / "0" / f"model.ckpt-{step}.index").write_bytes(b"")
    expected = (
        f"CheckpointDamagedError: No checkpoint in {tmp_path}/0 is whole (model.ckpt-2.index is "
        "empty; model.ckpt-0.index is empty). Copy a whole one there, or use another model_dir to "
        "begin at step 0."
    )
    answers = fake_cluster.run(_train, engine, str(tmp_path), 4, **options)
    assert answers == [{"error": expected}, {"error": expected}]


@pytest.mark.parametrize("engine", ENGINES)
def test_all_workers_go_on_where_the_file_checkpoint_is_lost(
    fake_cluster: Any, tmp_path: Path, engine: str
) -> None:
    options = {"engine": engine, "num_workers": 2}
    fake_cluster.run(_train, engine, str(tmp_path), 3, **options)
    (tmp_path / "0" / "checkpoint").write_bytes(b"")
    answers = fake_cluster.run(_train, engine, str(tmp_path), 4, **options)
    assert [answer["first_step"] for answer in answers] == [3, 3]
