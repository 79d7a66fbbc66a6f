"""The logs of `fit` that are combined over all replicas: in which steps, and of which rows."""

import cProfile
import importlib
import os
import re
import signal
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfdist.strategies import LocalStrategy
from tfdist.strategies.keras.fit import FitRun, current_fit

LIBRARIES = ["keras", "tf_keras"]
STEPS = 8
X = np.linspace(-1, 1, 8 * STEPS, dtype=np.float32).reshape(-1, 2)
Y = np.abs(X[:, :1])

Seen = list[dict[str, float]]


def _fit(
    library: str,
    callbacks: list[Any],
    *,
    num_replicas: int = 2,
    x: Any = X,
    y: Any = Y,
    strategy: Any = None,
    kind: Any = None,
    make_metrics: Callable[[], list[Any]] = lambda: ["mae"],
    **options: Any,
) -> Any:
    keras = importlib.import_module(library)
    keras.utils.set_random_seed(1)
    with (strategy or LocalStrategy(num_replicas)).scope():
        model = (kind or keras.Sequential)([keras.Input([2]), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse", metrics=make_metrics())
    given: Any = callbacks
    if options.pop("as_list", False):
        kinds = keras.callbacks
        given = kinds.CallbackList(
            callbacks, add_history=True, model=model, verbose=0, epochs=1, steps=STEPS
        )
    settings = {"batch_size": 4, "shuffle": False, "verbose": 0, **options}
    return model.fit(x, y, callbacks=given, **settings)


def _recording(base: Any, seen: Seen, *arguments: Any) -> Any:
    class Recording(base):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            seen.append({name: float(value) for name, value in logs.items()})

        def _implements_train_batch_hooks(self) -> bool:
            return True  # tf_keras asks; a backup says no.

    return Recording(*arguments)


def _lambda(keras: Any, seen: Seen) -> Any:
    def note(batch: int, logs: Any) -> None:
        seen.append({name: float(value) for name, value in logs.items()})

    return keras.callbacks.LambdaCallback(on_train_batch_end=note)


READERS: dict[str, Callable[[Any, Seen, str], Any]] = {
    "a class": lambda keras, seen, path: _recording(keras.callbacks.Callback, seen),
    "a function": lambda keras, seen, path: _lambda(keras, seen),
    "a class of Keras' backup": lambda keras, seen, path: _recording(
        keras.callbacks.BackupAndRestore, seen, path
    ),
}


@cache
def _alone(library: str) -> list[list[float]]:
    """Returns the logs of each step of a training in one replica."""
    seen: Seen = []
    _fit(library, [_lambda(importlib.import_module(library), seen)], num_replicas=1)
    return [list(logs.values()) for logs in seen]


@pytest.mark.parametrize(
    ("library", "reader", "as_list"),
    [
        ("keras", "a class", True),
        ("keras", "a function", False),
        ("keras", "a class of Keras' backup", False),
        ("tf_keras", "a class", False),
        ("tf_keras", "a function", True),
        ("tf_keras", "a class of Keras' backup", False),
    ],
)
def test_a_callback_gets_the_logs_of_all_rows_in_each_step(
    library: str, reader: str, as_list: bool, tmp_path: Any
) -> None:
    seen: Seen = []
    callback = READERS[reader](importlib.import_module(library), seen, str(tmp_path / "backup"))
    _fit(library, [callback], as_list=as_list)
    expected = _alone(library)
    assert len(expected) == len({tuple(logs) for logs in expected}) == STEPS
    np.testing.assert_allclose([list(logs.values()) for logs in seen], expected, atol=1e-6)


def _calls_of_ten_steps(library: str, strategy: Any) -> dict[str, int]:
    """Returns how often TensorFlow is called, and a tensor is read, in ten steps of `fit`."""
    base, profile = importlib.import_module(library).callbacks.Callback, cProfile.Profile()

    class Counts(base):  # type: ignore[misc]
        _supports_tf_logs = True  # Else tf_keras reads the loss for it.

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if batch == 10:
                profile.enable()
            elif batch == 20:
                profile.disable()

    _fit(library, [Counts()], x=np.tile(X, (5, 1)), y=np.tile(Y, (5, 1)), strategy=strategy)
    calls: Any = [one for one in profile.getstats() if isinstance(one.code, str)]
    names = ("TFE_Py_FastPathExecute", "TFE_Py_Execute", "_numpy_internal")
    counts = {
        name: sum(one.callcount for one in calls if re.search(rf"\b{name}\b", one.code))
        for name in names
    }
    return counts


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_step_calls_tensorflow_no_more_often_than_in_plain_keras(library: str) -> None:
    plain = _calls_of_ten_steps(library, tf.distribute.get_strategy())
    ours = _calls_of_ten_steps(library, LocalStrategy(2))
    assert plain["TFE_Py_Execute"] == 10
    # One more tensor is read, which is on the host.
    assert ours == {**plain, "_numpy_internal": plain["_numpy_internal"] + 10}


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_model_that_a_callback_trains_has_its_own_logs(library: str) -> None:
    keras = importlib.import_module(library)
    base, inner = keras.callbacks.Callback, []

    class Trains(base):  # type: ignore[misc]
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if batch == 3:
                strategy, outer = self.model.distribute_strategy, current_fit()
                _fit(library, [_recording(base, inner)], strategy=strategy)
                assert current_fit() is outer is not None

    history = _fit(library, [Trains()], y=3 * Y).history
    logs = [list(one.values()) for one in inner]
    np.testing.assert_allclose(logs, _alone(library), atol=1e-6)
    for name, values in _fit(library, [], y=3 * Y, num_replicas=1).history.items():
        np.testing.assert_allclose(history[name], values, atol=1e-6, err_msg=name)


@pytest.fixture
def combined(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each step of the trainings that follow, whether it has combined its logs."""
    steps: list[bool] = []
    note = FitRun.note_logs

    def note_logs(self: FitRun, logs: Any) -> Any:
        steps.append(self.combines)
        return note(self, logs)

    monkeypatch.setattr(FitRun, "note_logs", note_logs)
    return steps


@pytest.mark.parametrize("library", LIBRARIES)
def test_logs_that_nobody_reads_are_combined_at_the_ends_of_an_epoch(
    library: str, combined: list[bool], tmp_path: Any
) -> None:
    callbacks = importlib.import_module(library).callbacks
    quiet = [
        callbacks.ModelCheckpoint(str(tmp_path / "model.weights.h5"), save_weights_only=True),
        callbacks.BackupAndRestore(str(tmp_path / "backup")),
        callbacks.EarlyStopping(monitor="loss", patience=3),
    ]
    history = _fit(library, quiet, epochs=2).history
    assert combined == 2 * [True, *[False] * (STEPS - 2), True]
    alone = _fit(library, [], epochs=2, num_replicas=1).history
    for name, values in alone.items():
        np.testing.assert_allclose(history[name], values, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_loss_of_nan_is_said_after_its_step(
    library: str, combined: list[bool], capfd: pytest.CaptureFixture[str]
) -> None:
    y = Y.copy()
    y[4 * 3] = np.nan  # Of the fourth step, which does not combine its logs.
    _fit(library, [], y=y)
    assert not combined[3]
    said = capfd.readouterr().err
    assert said.count("is NaN") == 1
    assert "After step 4 the loss of worker 0 is NaN" in said


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_loss_of_nan_in_the_last_step_of_an_epoch_of_unknown_length_is_said(
    library: str, combined: list[bool], capfd: pytest.CaptureFixture[str]
) -> None:
    y = Y.copy()
    y[-1] = np.nan  # Of the second replica.
    data = tf.data.Dataset.from_tensor_slices((X, y)).batch(4, drop_remainder=True)
    _fit(library, [], x=data.filter(lambda *_: True), y=None, batch_size=None)
    assert combined == [True, *[False] * (STEPS - 1)]
    said = capfd.readouterr().err
    assert said.count("is NaN") == 1
    assert f"After step {STEPS} the loss is NaN" in said


@pytest.mark.parametrize(("library", "num_replicas"), [("keras", 2), ("tf_keras", 1)])
def test_logs_without_a_loss_are_no_loss_of_nan(
    library: str, num_replicas: int, capfd: pytest.CaptureFixture[str]
) -> None:
    keras = importlib.import_module(library)

    class OwnLogs(keras.Sequential):  # type: ignore[misc, name-defined]
        def train_step(self, data: Any) -> Any:
            return {"error": super().train_step(data)["loss"]}

    _fit(library, [], kind=OwnLogs, num_replicas=num_replicas)
    assert "is NaN" not in capfd.readouterr().err


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_loss_that_an_own_train_step_returns_is_the_sum_of_what_it_has_divided(
    library: str,
) -> None:
    """As with tf_keras' `reduce_per_replica="auto"`: of each replica, a part of the loss of all."""
    keras = importlib.import_module(library)

    class Own(keras.Sequential):  # type: ignore[misc, name-defined]
        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                each = tf.reduce_sum(tf.square(self(x, training=True) - y), axis=-1)
                loss = tf.nn.compute_average_loss(each, global_batch_size=4)
            weights = self.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
            return {"loss": loss, "half": 0.5 * loss}

    alone, found = (
        _fit(library, [], kind=Own, num_replicas=num_replicas, epochs=2).history
        for num_replicas in (1, 2)
    )
    np.testing.assert_allclose(found["loss"], alone["loss"], atol=1e-6)
    # Other numbers count by the rows of a replica: a half of a part is one of a replica's.
    np.testing.assert_allclose(found["half"], np.multiply(alone["half"], 0.5), atol=1e-6)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_stop_signal_ends_fit_after_a_step_that_combines_no_logs(
    library: str,
    combined: list[bool],
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    keras = importlib.import_module(library)

    class Signal(keras.callbacks.Callback):  # type: ignore[misc, name-defined]
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if batch == 3:
                os.kill(os.getpid(), signal.SIGUSR1)

    with caplog.at_level("INFO", "tensorflow"), pytest.raises(SystemExit):
        _fit(library, [Signal()])
    assert combined == [True, False, False, False]
    assert "Stopped by SIGUSR1 after step 4;" in capfd.readouterr().err
    assert "Stopped" not in caplog.text  # It is said once.


def test_metrics_count_all_rows_however_they_compute_their_results() -> None:
    """R2Score multiplies its variables at once, and a metric may have several results."""
    keras = importlib.import_module("keras")

    class Extremes(keras.metrics.Metric):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__(name="extremes")
            self.total = self.add_variable([], "zeros", name="total")

        def update_state(self, y: Any, y_pred: Any, sample_weight: Any = None) -> None:
            self.total.assign_add(tf.reduce_sum(y))

        def result(self) -> dict[str, Any]:
            return {"total": self.total, "half": tf.multiply(self.total.value, 0.5)}

    alone, found = (
        _fit(
            "keras",
            [],
            num_replicas=num_replicas,
            make_metrics=lambda: [keras.metrics.R2Score(), Extremes()],
            epochs=2,
        ).history
        for num_replicas in (1, 2)
    )
    assert {"r2_score", "total", "half"} <= set(alone)
    for name, values in alone.items():
        np.testing.assert_allclose(found[name], values, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(
    ("is_mean", "run_eagerly", "is_said"),
    [(False, False, False), (True, False, True), (False, True, False), (True, True, True)],
)
def test_a_line_names_a_number_of_batches_only_if_the_result_of_the_metric_reads_it(
    library: str,
    is_mean: bool,
    run_eagerly: bool,
    is_said: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    keras = importlib.import_module(library)

    class Batches(keras.metrics.Metric):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__(name="batches")
            self.total = self.add_weight(name="total", initializer="zeros")
            self.number = self.add_weight(name="number", initializer="zeros")

        def update_state(self, y: Any, y_pred: Any, sample_weight: Any = None) -> None:
            self.total.assign_add(tf.reduce_sum(y))
            self.number.assign_add(1.0)

        def result(self) -> Any:
            return self.total / self.number if is_mean else self.total * 1.0

    rows = tf.data.Dataset.from_tensor_slices((X[:8], Y[:8])).batch(4)
    with LocalStrategy(2).scope():
        model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
        model.compile("sgd", "mse", metrics=[Batches()], run_eagerly=run_eagerly)
    with caplog.at_level("WARNING", "tensorflow"):
        model.fit(rows, verbose=0)
        model.evaluate(rows, verbose=0)
    assert ("a number of batches" in caplog.text) == is_said
    assert "total" not in caplog.text


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_line_names_what_is_no_sum_over_rows_where_keras_executes_eagerly(
    library: str, caplog: pytest.LogCaptureFixture
) -> None:
    keras = importlib.import_module(library)

    @tf.function
    def added(one: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
        return one + other

    class Watching(keras.metrics.Metric):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__(name="watching")
            for name in ("largest", "shifted", "rows", "known_rows", "total", "called"):
                setattr(self, name, self.add_weight(name=name, initializer="zeros"))

        def update_state(self, y: Any, y_pred: Any, sample_weight: Any = None) -> None:
            off = tf.reduce_sum(tf.abs(y - y_pred))
            self.largest.assign(tf.maximum(tf.convert_to_tensor(self.largest), off))
            self.shifted.assign_sub(0.5)
            self.rows.assign_add(tf.cast(tf.shape(y)[0], tf.float32))
            self.known_rows.assign_add(float(y.shape[0]))
            self.total.assign(self.total + 2.0 * off)
            self.called.assign(tf.identity(added(tf.convert_to_tensor(self.called), off)))

        def result(self) -> Any:
            sums = self.total + self.called
            return self.largest + self.shifted + sums / (self.rows + self.known_rows)

    with LocalStrategy(2).scope():
        model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
        model.compile("sgd", "mse", metrics=[Watching()], run_eagerly=True)
    with caplog.at_level("WARNING", "tensorflow"):
        model.fit(X[:12], Y[:12], batch_size=4, verbose=0)
    lines = [line for line in caplog.messages if "number of batches" in line]
    assert len(lines) == 2
    assert "largest" in lines[0] and "shifted" in lines[1]


def _evaluated(
    library: str, strategy: Any, *, reads: bool = False, test_step: Any = None
) -> tuple[dict[str, float], Seen, list[bool]]:
    """Returns what `evaluate` returns, each step's logs if they are read, and whether they are."""
    keras, seen, are_read = importlib.import_module(library), [], []
    keras.utils.set_random_seed(1)
    members = {} if test_step is None else {"test_step": test_step}
    kind = type("Model", (keras.Sequential,), members)
    with strategy.scope():
        model = kind([keras.Input([2]), keras.layers.Dense(1)])
        model.tracker = keras.metrics.Mean()
        model.compile("sgd", "mse", metrics=["mae"] if test_step is None else None)

    def note(self: Any, batch: int, logs: Any = None) -> None:
        logs_of_all = getattr(model.test_function, "logs_of_all", None)
        are_read.append(getattr(logs_of_all, "is_read", True))

    def read(self: Any, batch: int, logs: Any) -> None:
        seen.append({name: float(value) for name, value in logs.items()})

    methods = {"on_test_batch_begin": note} | ({"on_test_batch_end": read} if reads else {})
    callback = type("Reads", (keras.callbacks.Callback,), methods)()
    found = model.evaluate(X, Y, batch_size=4, verbose=0, return_dict=True, callbacks=[callback])
    assert getattr(getattr(model.test_function, "logs_of_all", None), "is_read", True)
    return found, seen, are_read


@pytest.mark.parametrize("library", LIBRARIES)
def test_evaluate_combines_the_logs_of_its_steps_if_a_callback_reads_them(library: str) -> None:
    plain, strategy = tf.distribute.get_strategy(), LocalStrategy(2)
    expected, of_steps, _ = _evaluated(library, plain, reads=True)
    found, seen, are_read = _evaluated(library, strategy, reads=True)
    assert all(are_read)
    assert found == pytest.approx(expected, abs=1e-6)
    for step, logs in zip(of_steps, seen, strict=True):
        assert logs == pytest.approx(step, abs=1e-6)
    found, _, are_read = _evaluated(library, strategy)
    assert are_read
    assert not any(are_read)
    assert found == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("library", LIBRARIES)
def test_evaluate_returns_what_a_test_step_of_ones_own_has_of_all_rows(library: str) -> None:
    def test_step(self: Any, data: Any) -> Any:
        x, y = data
        self.tracker.update_state(tf.square(self(x, training=False) - y))
        return {"error": self.tracker.result()}

    expected, _, _ = _evaluated(library, tf.distribute.get_strategy(), test_step=test_step)
    found, _, _ = _evaluated(library, LocalStrategy(2), test_step=test_step)
    assert list(found) == ["error"]
    assert found == pytest.approx(expected, abs=1e-6)
