"""Recovery of all workers from the same older checkpoint if worker 0's newest is damaged."""

import shutil
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


@pytest.fixture(scope="module")
def trained_before() -> dict[str, tuple[Path, Any]]:
    """The folder and the last weights of the trainings that `trained` has made, by engine."""
    return {}


@pytest.fixture(params=ENGINES)
def trained(
    request: pytest.FixtureRequest,
    fake_cluster: Any,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    trained_before: dict[str, tuple[Path, Any]],
) -> tuple[str, Path, Any]:
    """The engine, a folder with the checkpoints of steps 0, 2, 4 and 6, and the last weights."""
    engine = request.param
    if engine not in trained_before:
        folder = tmp_path_factory.mktemp("whole")
        first, _ = fake_cluster.run(_train, engine, str(folder), 6, engine=engine)
        trained_before[engine] = folder, first["weights"]
    folder, weights = trained_before[engine]
    shutil.copytree(folder / "0", tmp_path / "0")
    return engine, tmp_path, weights


def test_all_workers_go_on_from_the_newest_whole_checkpoint_of_worker_0(
    fake_cluster: Any, trained: tuple[str, Path, Any]
) -> None:
    engine, folder, weights = trained
    (folder / "0" / "model.ckpt-6.index").write_bytes(b"")
    answers = fake_cluster.run(_train, engine, str(folder), 6, engine=engine)
    assert [answer["first_step"] for answer in answers] == [4, 4]
    for answer in answers:
        np.testing.assert_array_equal(answer["weights"], weights)
    assert (folder / "0" / "damaged-model.ckpt-6.index").exists()


def test_every_worker_ends_with_the_list_where_none_is_whole(
    fake_cluster: Any, trained: tuple[str, Path, Any]
) -> None:
    engine, folder, _ = trained
    names = [f"model.ckpt-{step}.index" for step in (6, 4, 2, 0)]
    for name in names:
        (folder / "0" / name).write_bytes(b"")
    damaged = "; ".join(f"{name} is empty" for name in names)
    expected = (
        f"CheckpointDamagedError: No checkpoint in {folder}/0 is whole ({damaged}). Copy a whole "
        "one there, or use another model_dir to begin at step 0."
    )
    answers = fake_cluster.run(_train, engine, str(folder), 8, engine=engine)
    assert answers == [{"error": expected}, {"error": expected}]
