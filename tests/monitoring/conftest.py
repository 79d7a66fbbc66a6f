"""A tiny model that the tests of the monitoring hooks train."""

import socketserver
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

import tfdist.estimator as tfe

Train = Callable[..., tfe.Estimator]


@pytest.fixture(autouse=True)
def servers_end_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets servers, such as Prometheus' client's, look for their end every 10 ms, not 500 ms."""
    monkeypatch.setattr(socketserver.BaseServer.serve_forever, "__defaults__", (0.01,))


@pytest.fixture
@contextmanager
def as_second_worker() -> Iterator[None]:
    """A context with mpirun's variables of worker 1 of 2."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"RANK": "1", "SIZE": "2", "LOCAL_RANK": "1", "LOCAL_SIZE": "2"}.items():
            patch.setenv(f"OMPI_COMM_WORLD_{name}", value)
        yield


@pytest.fixture
def train(tmp_path: Path) -> Train:
    """Trains a model whose loss after step n is 10 * n, with a scalar summary "half" of 5 * n."""

    def train(hooks: list[Any], *, steps: int = 6, iterations: int = 1) -> tfe.Estimator:
        def model_fn(features: Any, mode: str) -> tfe.EstimatorSpec:
            step = v1.assign_add(v1.train.get_global_step(), 1)
            now = tf.cast(step, tf.float32) * features  # which are ones
            v1.summary.scalar("half", 5.0 * now)
            tf.identity(tf.stack([now, now]), name="pair")
            return tfe.EstimatorSpec(mode, loss=10.0 * now, train_op=step)

        def input_fn() -> tf.data.Dataset:
            return tf.data.Dataset.from_tensors(1.0).repeat()

        config = tfe.RunConfig(
            save_summary_steps=None,
            log_step_count_steps=None,
            device=tfe.DeviceConfig(iterations_per_loop=iterations),
        )
        estimator = tfe.Estimator(model_fn, tmp_path / "model", config)
        return estimator.train(input_fn, hooks=hooks, steps=steps)

    return train
