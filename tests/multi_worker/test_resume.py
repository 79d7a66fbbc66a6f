"""Checkpoints: worker 0 alone writes them, and a killed run goes on from the last one."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tfdist.testing import WorkerFailedError
from tfdist.testing.run import wait_until


def _is_saved(folder: str, step: int) -> bool:
    """Waits until worker 0 has written a checkpoint, which it does beside the training."""
    import tensorflow as tf

    def newest() -> str:
        return tf.train.latest_checkpoint(str(Path(folder, "worker-0"))) or ""

    return wait_until(lambda: newest().endswith(f"-{step}"), 30.0)


def _train(folder: str, *, die_after: int | None = None, max_steps: int = 20) -> dict[str, Any]:
    """Trains 20 steps with momentum and batch norm; `die_after` kills the worker at that step."""
    import os
    import signal

    import numpy as np
    import tensorflow as tf
    from brief_training import Steps, Watch
    from snapshot_training import model_fn

    import tfdist.estimator as tfe
    from tfdist.strategies import strategy_for_run

    strategy = strategy_for_run()
    worker = strategy.extended.collectives.worker_index

    def input_fn() -> tf.data.Dataset:
        values = np.random.RandomState(worker).randn(16, 4).astype(np.float32)
        dataset = tf.data.Dataset.from_tensor_slices(values)
        return dataset.shuffle(16, seed=worker).repeat().batch(8)

    def die(step: int, run: Any) -> None:
        if step == die_after:
            assert worker > 0 or _is_saved(folder, step=die_after // 6 * 6)
            os.kill(os.getpid(), signal.SIGKILL)

    config = tfe.RunConfig(train_distribute=strategy, save_checkpoints_steps=6)
    watch = Watch()
    estimator = tfe.Estimator(model_fn, os.path.join(folder, f"worker-{worker}"), config)
    estimator.train(input_fn, hooks=[watch, Steps(die)], max_steps=max_steps)
    return {"first_step": watch.first_step, "values": watch.values}


@pytest.fixture
def undisturbed(
    fake_cluster: Any,
    tmp_path_factory: pytest.TempPathFactory,
    made_before: dict[str, tuple[Path, list[dict[str, Any]]]],
) -> tuple[Path, list[dict[str, Any]]]:
    """The folder and each worker's result of a training that was not interrupted."""
    if not made_before:
        folder = tmp_path_factory.mktemp("undisturbed")
        workers = fake_cluster.run(_train, str(folder), engine="horovod")
        made_before["undisturbed"] = folder, workers
    return made_before["undisturbed"]


# test_elastic.py has a killed run over gRPC, and test_exchange.py one process that trains twice.
def test_a_killed_run_goes_on_from_its_last_checkpoint_as_if_nothing_had_happened(
    fake_cluster: Any, undisturbed: Any, tmp_path: Path
) -> None:
    def train_twice(folder: str) -> list[dict[str, Any]]:
        return [_train(folder), _train(folder, max_steps=21)]

    _, workers = undisturbed
    with pytest.raises(WorkerFailedError, match="SIGKILL"):
        fake_cluster.run(_train, str(tmp_path), engine="horovod", die_after=14)
    resumed = fake_cluster.run(train_twice, str(tmp_path), engine="horovod")
    assert [[one["first_step"] for one in worker] for worker in resumed] == [[12, 20]] * 2
    for before, (after, _) in zip(workers, resumed, strict=True):
        for name, value in before["values"].items():
            # Each worker's own batch-norm statistics were combined at the checkpoints.
            np.testing.assert_allclose(value, after["values"][name], atol=1e-6, err_msg=name)


def test_only_worker_0_writes_checkpoints_and_events(undisturbed: Any) -> None:
    folder, _ = undisturbed
    written = {path.name for path in (folder / "worker-0").iterdir()}
    assert {"checkpoint", "graph.pbtxt", "model.ckpt-0.index", "model.ckpt-20.index"} <= written
    assert any(name.startswith("events.out.tfevents") for name in written)
    others = folder / "worker-1"
    assert not others.exists() or not list(others.iterdir())


def test_worker_0_saves_the_mean_of_all_workers_batch_norm_statistics(undisturbed: Any) -> None:
    import tensorflow as tf

    folder, workers = undisturbed
    checkpoint = tf.train.latest_checkpoint(str(folder / "worker-0"))
    saved = tf.train.load_variable(checkpoint, "batch_normalization/moving_mean")
    own = [worker["values"]["batch_normalization/moving_mean"] for worker in workers]
    np.testing.assert_allclose(saved, np.mean(own, axis=0), atol=1e-6)
    assert np.abs(saved).max() > 1e-3
