"""The activations that are kept at once, by count and by bytes."""

import ctypes
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.pipeline import Block, Options, PipelinedExecution, training_model
from tfdist.pipeline.compiled_calls import timeline_of
from tfdist.pipeline.schedule import Schedule
from tfdist.training import recomputation_checkpoint, recompute

Quiet = Callable[..., Options]


def program_of(train: Any) -> Any:
    (program,) = train._calls._programs.values()
    return program


@pytest.mark.parametrize(
    ("schedule", "allowed"),
    [("grouped", [5, 3, 1]), ("interleaved", [3, 2, 1]), ("sequential", [1, 1, 1])],
)
def test_a_stage_never_keeps_more_activations_than_its_schedule_says(
    layered: Any, quiet: Quiet, samples: Any, tmp_path: Path, schedule: Schedule, allowed: list[int]
) -> None:
    strategy = PipelinedExecution("B1", "B2", "B3", schedule=schedule)
    options = quiet(strategy, gradient_accumulation=6, enable_profiling=tmp_path)
    train = training_model(layered(3), options)
    inputs, labels = samples(12)
    train(inputs, labels)
    program = program_of(train)
    for _ in range(10):
        _, times = program([tf.constant(inputs), tf.constant(labels)])
        kept = [one.peak_activations for one in timeline_of(program, times[0], "").stages]
        assert all(one <= most for one, most in zip(kept, allowed, strict=True)), (kept, allowed)


def bytes_kept(quiet: Quiet, model: Any, recomputation: bool = False) -> list[int]:
    """Returns the bytes that both stages keep of a micro-batch, [2, 100] float32."""
    strategy = PipelinedExecution("B1", "B2")
    train = training_model(
        model, quiet(strategy, gradient_accumulation=3, recomputation=recomputation)
    )
    train(np.ones([6, 100], "float32"))
    return [stage.activation_bytes for stage in program_of(train).traced.cut_stages]


class Deep(tf.Module):
    """Two stages of layers without weights: all their activations are kept for backward."""

    def __init__(self, *num_layers: int) -> None:
        super().__init__()
        self.weights = [tf.Variable(1.0), tf.Variable(1.0)]
        self.num_layers = num_layers

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        for number, weight in enumerate(self.weights):
            with Block(f"B{number + 1}"):
                x = x * weight
                for _ in range(self.num_layers[number]):
                    x = tf.sin(x)
        with Block("B2"):
            return tf.reduce_mean(x)


def test_recomputation_keeps_only_what_a_stage_takes(quiet: Quiet) -> None:
    micro_batch = 2 * 100 * 4
    # What each of the 6 sines takes. The first one takes a product, which is computed again. The
    # first stage takes the model's input, which is there anyway.
    assert bytes_kept(quiet, Deep(6, 6)) == [5 * micro_batch, 6 * micro_batch]
    assert bytes_kept(quiet, Deep(6, 6), recomputation=True) == [0, micro_batch]


class Gelu(tf.Module):
    """GELU between two layers, then the loss."""

    def __init__(self) -> None:
        super().__init__()
        rng = np.random.default_rng(3)
        self.weights = [tf.Variable(rng.normal(size=[9, 9]), dtype=tf.float32) for _ in range(3)]

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        first, second, last = self.weights
        with Block("B1"):
            x = tf.nn.gelu(x @ first, approximate=True) @ second
        with Block("B2"):
            return tf.reduce_mean(tf.square(tf.nn.relu(x) @ last))


def test_what_is_cheap_to_compute_again_is_not_kept(quiet: Quiet) -> None:
    samples = np.random.default_rng(5).normal(size=[6, 9]).astype("float32")
    options = quiet(PipelinedExecution("B1", "B2"), gradient_accumulation=3)
    staged, plain = Gelu(), Gelu()
    train = training_model(staged, options, v1.train.GradientDescentOptimizer(0.1))
    train(samples)
    first, _ = program_of(train).traced.cut_stages
    # What GELU takes and its tanh. Half of the first, one more than the second and their product,
    # which the second layer's gradient needs, are computed again.
    assert first.activation_bytes == 2 * (2 * 9 * 4)
    with tf.GradientTape() as tape:
        loss = tf.add_n([plain(one) for one in tf.split(samples, 3)]) / 3
    gradients = tape.gradient(loss, plain.weights)
    for trained, weight, gradient in zip(staged.weights, plain.weights, gradients, strict=True):
        np.testing.assert_allclose(trained, weight - 0.1 * gradient, rtol=1e-6, atol=1e-6)


def test_random_draws_are_kept_and_not_drawn_again(quiet: Quiet) -> None:
    weight = tf.Variable(1.0)

    def model(x: tf.Tensor) -> tf.Tensor:
        with Block("B1"):
            x = x * weight
        with Block("B2"):
            return tf.reduce_mean(tf.nn.dropout(x * x, 0.5, seed=1))

    _, second = bytes_kept(quiet, model, recomputation=True)
    # Which elements are kept, one byte each, and what the stage takes.
    assert second == 2 * 100 + 2 * 100 * 4


def test_a_stage_keeps_a_checkpoint_and_a_function_of_recompute_keeps_its_inputs(
    quiet: Quiet,
) -> None:
    def layer(x: tf.Tensor) -> tf.Tensor:
        return tf.sin(tf.nn.dropout(tf.sin(tf.sin(x)), rate=0.5))

    def activation_bytes(layer: Any, keep: Any, recomputation: bool) -> int:
        weight = tf.Variable(1.0)

        def model(x: tf.Tensor) -> tf.Tensor:
            with Block("B1"):
                x = x * weight
            with Block("B2"):
                return tf.reduce_mean(tf.sin(keep(layer(x))))

        return bytes_kept(quiet, model, recomputation=recomputation)[1]

    taken, mask = 2 * 100 * 4, 2 * 100
    assert activation_bytes(layer, tf.identity, True) == taken + mask
    assert activation_bytes(layer, recomputation_checkpoint, True) == 2 * taken + mask
    assert activation_bytes(recompute(layer), tf.identity, False) == 2 * taken + mask


@pytest.fixture
def freed_at_once() -> Iterator[None]:
    """Lets malloc give each large tensor back to the system as soon as it is freed."""
    mallopt, threshold = ctypes.CDLL(None).mallopt, -3
    assert mallopt(threshold, 64 * 1024) == 1
    yield
    mallopt(threshold, 128 * 1024)


def peak_bytes(run: Callable[[], Any]) -> int:
    """The most memory that the process has had while something runs, above what it had before."""
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    run()
    return status("VmHWM") - before


def status(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


MEGABYTE = 2**20


@pytest.mark.usefixtures("freed_at_once")
def test_the_peak_of_memory_falls_with_interleaving_and_with_recomputation(quiet: Quiet) -> None:
    def peak(schedule: Schedule, recomputation: bool) -> int:
        options = quiet(
            PipelinedExecution("B1", "B2", schedule=schedule),
            gradient_accumulation=4,
            recomputation=recomputation,
        )
        train = training_model(Deep(8, 1), options)
        samples = np.ones([4, 4 * MEGABYTE // 4], "float32")  # 4 MB a micro-batch.
        train(samples)
        return peak_bytes(lambda: train(samples))

    grouped, interleaved = peak("grouped", False), peak("interleaved", False)
    recomputed = peak("interleaved", True)
    # Of the first stage 3 activations of 32 MB are kept, 2 with interleaving, and 1 for the time of
    # its backward with recomputation. The second stage keeps little.
    assert grouped - interleaved > 16 * MEGABYTE
    assert interleaved - recomputed > 16 * MEGABYTE
