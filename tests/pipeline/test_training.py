"""Calls of a training model: what they give, how often they trace, what they show."""

from collections.abc import Callable
from contextlib import nullcontext
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from tfdist.pipeline import (
    Block,
    Options,
    PipelinedExecution,
    compiled_calls,
    inference_model,
    training_model,
)

Quiet = Callable[..., Options]
TWO = PipelinedExecution("B1", "B2")


def test_later_calls_do_not_trace_again_and_another_micro_batch_size_does_once(
    layered: Any, quiet: Quiet, samples: Any
) -> None:
    model = layered(2)
    train = training_model(model, quiet(TWO, gradient_accumulation=3))
    train(*samples(6))
    # A model that makes its variables is called a second time, as by tf.function: with them.
    after_first = model.num_traces
    inputs, labels = samples(6)
    train(inputs + 1, labels)
    train(tf.constant(inputs), labels)
    train(tf.Variable(inputs), tf.constant(labels))
    assert model.num_traces == after_first
    train(*samples(12))
    assert model.num_traces == after_first + 1
    train(*samples(6))
    train(*samples(12))
    assert model.num_traces == after_first + 1


def test_the_first_call_shows_a_bar_on_stderr_unless_it_is_off_and_later_ones_do_not(
    layered: Any, quiet: Quiet, samples: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    options = quiet(TWO, gradient_accumulation=3).show_progress_bar(True)
    train = training_model(layered(2), options)
    capfd.readouterr()
    train(*samples(6))
    out, err = capfd.readouterr()
    assert "Graph compilation" in err
    assert "100/100" in err
    assert out == ""
    train(*samples(6))
    training_model(layered(2), options.clone().show_progress_bar(False))(*samples(6))
    assert "Graph" not in capfd.readouterr().err


def test_the_bar_moves_with_each_micro_batch_that_is_in_the_graph(
    layered: Any, quiet: Quiet, samples: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares: list[float] = []
    monkeypatch.setattr(compiled_calls, "building_bar", lambda *, shown: nullcontext(shares.append))
    training_model(layered(2), quiet(TWO, gradient_accumulation=6))(*samples(6))
    assert shares == sorted(shares)
    steps = [later - sooner for sooner, later in pairwise(shares)]
    assert max(steps) < 0.15
    assert len(steps) > 4 * 6  # Two stages, forward and backward.
    assert shares[-1] == 1


# Of 8 micro-batches x 2 replicas of 3 samples.
OUTPUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "final": lambda x: x[-2:],
    "all": lambda x: x,
    # Each second micro-batch of both replicas.
    "every_n": lambda x: x.reshape(8, 2, *x.shape[1:])[1::2].reshape(8, *x.shape[1:]),
    "sum": lambda x: x.sum(0),
}


@pytest.mark.parametrize(
    ("name", "is_training"),
    [(None, True), ("every_n", True), ("sum", True), *((name, False) for name in [None, *OUTPUTS])],
)
def test_the_output_mode_says_whose_outputs_a_call_gives(
    quiet: Quiet, name: str | None, is_training: bool
) -> None:
    weight = tf.Variable(tf.ones([2]))

    def model(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with Block("B1"):
            y = x * 2
        with Block("B2"):
            return y, tf.reduce_mean(x * weight)

    counts = (2, 4) if is_training else (8, 1)
    options = quiet(TWO, replication_factor=2)
    options.device_iterations(counts[0]).gradient_accumulation(counts[1])
    if name is not None:
        options.output_mode(name, every=2 if name == "every_n" else None)
    x = np.arange(16 * 3 * 2, dtype="float32").reshape(-1, 2)
    if is_training:
        outputs, means = training_model(model, options, tf_keras.optimizers.SGD(0.0))(x)
    else:
        outputs, means = inference_model(model, options)(x)
    picked = OUTPUTS[name or ("final" if is_training else "all")]
    by_micro_batch = x.reshape(16, 3, 2)
    # Samples stand one after the other; a sum has the shape of one micro-batch.
    np.testing.assert_allclose(outputs, picked(by_micro_batch * 2).reshape(-1, 2))
    np.testing.assert_allclose(means, picked(by_micro_batch.mean((1, 2))))


def test_the_final_loss_of_one_replica_is_a_scalar(
    layered: Any, quiet: Quiet, samples: Any
) -> None:
    train = training_model(layered(2), quiet(TWO, gradient_accumulation=3))
    outputs, loss = train(*samples(6))
    assert outputs.shape == (2, 6)
    assert loss.shape == ()


def test_a_loss_alone_trains_by_gradient_descent_with_a_rate_of_a_hundredth(quiet: Quiet) -> None:
    weight = tf.Variable(1.0)

    def model(x: tf.Tensor) -> tf.Tensor:
        with Block("B1"):
            x = x * weight
        with Block("B2"):
            return tf.reduce_mean(x)

    train = training_model(model, quiet(TWO, gradient_accumulation=3))  # Without an optimizer.
    loss = train(np.full([3], 2, "float32"))
    assert loss.numpy() == 2
    assert weight.numpy() == pytest.approx(1 - 0.01 * 2)


@pytest.mark.parametrize("kind", ["model", "module", "function"])
def test_a_model_that_takes_training_is_told(quiet: Quiet, kind: str) -> None:
    reported: list[Any] = []
    weight = tf.Variable(1.0)

    def forward(x: tf.Tensor, training: Any = None) -> tf.Tensor:
        reported.append(training)
        with Block("B1"):
            x = x * weight
        with Block("B2"):
            return tf.reduce_mean(x)

    class Module(tf.Module):
        def __call__(self, x: tf.Tensor, training: Any = None) -> tf.Tensor:
            return forward(x, training)

    class Model(tf_keras.Model):
        def call(self, x: tf.Tensor, training: Any = None) -> tf.Tensor:
            return forward(x, training)

    model = {"model": Model, "module": Module, "function": lambda: forward}[kind]()
    training_model(model, quiet(TWO, gradient_accumulation=3))(np.ones([3, 1], "float32"))
    assert set(reported) == {True}


def test_autograph_turns_python_conditions_into_those_of_the_graph(quiet: Quiet) -> None:
    class Model(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = tf.Variable(1.0)

        def __call__(self, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            with Block("B1"):
                y = -x
                if tf.reduce_sum(x) > 0:
                    y = x * self.weight
            with Block("B2"):
                return y, tf.reduce_mean(y)

    options = quiet(TWO, gradient_accumulation=3, output_mode="all")
    outputs, _ = training_model(Model(), options)(np.array([3, -2, 1], "float32"))
    np.testing.assert_allclose(outputs, [3, 2, 1])


def test_the_optimizer_counts_weight_updates(layered: Any, quiet: Quiet, samples: Any) -> None:
    optimizer = tf_keras.optimizers.Adam()
    options = quiet(TWO, gradient_accumulation=3, device_iterations=2)
    train = training_model(layered(2), options, optimizer)
    train(*samples(12))
    train(*samples(12))
    assert optimizer.iterations.numpy() == 4


def test_the_random_seed_repeats_the_draws(quiet: Quiet) -> None:
    def run(seed: int) -> np.ndarray:
        weight = tf.Variable(tf.ones([4]))

        def model(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            with Block("B1"):
                x = tf.nn.dropout(x * weight, 0.5)
            with Block("B2"):
                return x, tf.reduce_mean(x)

        options = quiet(TWO, gradient_accumulation=3, output_mode="all", random_seed=seed)
        outputs, _ = training_model(model, options)(np.ones([24, 4], "float32"))
        return np.array(outputs)

    first = run(1)
    np.testing.assert_array_equal(first, run(1))
    assert (first != run(2)).any()
    # Each micro-batch has draws of its own.
    assert (first[:8] != first[8:16]).any()
