"""Hooks as callbacks of `fit`, with both Keras libraries and on two workers."""

import csv
import importlib
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tfdist.monitoring import CsvMetricsHook, MemoryHook, PrometheusHook

LIBRARIES = ["keras", "tf_keras"]


def fit(library: str, callbacks: list[Any], epochs: int = 2, **options: Any) -> Any:
    """Trains 5 steps in each epoch."""
    from tfdist.strategies import strategy_for_run

    keras = importlib.import_module(library)
    with strategy_for_run().scope():
        model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
        model.compile("sgd", "mse", metrics=["mae"], **options)
    x = np.arange(40, dtype=np.float32).reshape(20, 2) / 40
    history = model.fit(x, x[:, :1], batch_size=4, epochs=epochs, verbose=0, callbacks=callbacks)
    return history.history


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_table_and_prometheus_have_the_logs_of_every_n_steps(
    library: str, tmp_path: Path
) -> None:
    path = tmp_path / "log.csv"
    table = CsvMetricsHook(path, {"loss": "loss", "error": "mae"}, every_n_steps=5)
    server = PrometheusHook(0, ["loss"], every_n_steps=5)
    keras = importlib.import_module(library)
    served: list[str] = []

    class Read(keras.callbacks.Callback):  # type: ignore[misc, name-defined]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics") as page:
                served.append(page.read().decode())

    history = fit(library, [table.as_callback(), server.as_callback(), Read()])
    assert server.port is None
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert [row["step"] for row in rows] == ["5", "10"]
    for name, log in (("loss", "loss"), ("error", "mae")):
        np.testing.assert_allclose([float(row[name]) for row in rows], history[log], rtol=1e-6)
    for page, step, loss in zip(served, (5, 10), history["loss"], strict=True):
        values = dict(line.rsplit(" ", 1) for line in page.splitlines() if line[0] != "#")
        assert float(values['tfdist_global_step{worker="0"}']) == step
        assert float(values['tfdist_loss{worker="0"}']) == pytest.approx(loss, rel=1e-6)


def test_several_steps_in_a_call_report_once(tmp_path: Path) -> None:
    hook = CsvMetricsHook(tmp_path / "log.csv", every_n_steps=2)
    fit("keras", [hook.as_callback()], epochs=1, steps_per_execution=5)
    assert [line.split(",")[0] for line in (tmp_path / "log.csv").open()] == ["step", "5"]


def test_a_log_that_fit_does_not_have_is_named(tmp_path: Path) -> None:
    hook = CsvMetricsHook(tmp_path / "log.csv", ["acc"], every_n_steps=1)
    with pytest.raises(ValueError, match=r"no log called 'acc'. Its logs: loss, mae"):
        fit("keras", [hook.as_callback()])


@pytest.mark.parametrize("library", LIBRARIES)
def test_memory_is_printed_and_summarised(
    library: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    hook = MemoryHook(5, tmp_path)
    fit(library, [hook.as_callback()])
    lines = [line for line in capfd.readouterr().err.splitlines() if "memory: host" in line]
    assert [line.partition(": memory")[0] for line in lines] == ["step 5", "step 10"]
    assert [use.place for use in hook.last] == ["host"]
    import tensorflow as tf

    [path] = tmp_path.glob("events.out.*")
    events = tf.compat.v1.train.summary_iterator(str(path))
    assert {event.step for event in events if event.summary.value} == {5, 10}
