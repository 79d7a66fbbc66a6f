"""Refusals of a pipelined model: before anything runs, with the numbers or names and the fix."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfdist.pipeline import (
    Block,
    Options,
    PipelinedExecution,
    ShardedExecution,
    inference_model,
    training_model,
)

Quiet = Callable[..., Options]
TWO = PipelinedExecution("B1", "B2")
X = np.ones((12, 6), np.float32)


def train(model: Any, options: Options, *arguments: Any) -> Any:
    return training_model(model, options)(*arguments)


@pytest.mark.parametrize(
    ("settings", "arguments", "error", "words"),
    [
        ({}, (X.tolist(), X.tolist()), TypeError, r"got single numbers.* array of it with np.arr"),
        ({}, (X, X[:6]), ValueError, r"\(12, 6\) and \(6, 6\)"),
        (
            {"device_iterations": 2, "replication_factor": 2},
            (X[:10], X[:10]),
            ValueError,
            r"10 samples.*12 micro-batches.*device_iterations 2.*gradient_accumulation 3.*12",
        ),
        (
            {"replication_factor": 12},
            (np.ones([36, 6], "f"), np.ones([36, 6], "f")),
            ValueError,
            r"24 devices.*12 replicas.*but there are 8",
        ),
    ],
)
def test_samples_and_options_that_do_not_fit(
    layered: Any, quiet: Quiet, settings: Any, arguments: Any, error: Any, words: str
) -> None:
    options = quiet(TWO, gradient_accumulation=3, **settings)
    with pytest.raises(error, match=words):
        train(layered(2), options, *arguments)


def test_too_few_iterations_for_the_stages_in_inference(layered: Any, quiet: Quiet) -> None:
    model = inference_model(layered(3), quiet(PipelinedExecution("B1", "B2", "B3")))
    with pytest.raises(ValueError, match=r"device_iterations is 1.*3 stages.*at least 3"):
        model(X)


def test_gradient_accumulation_in_inference(layered: Any, quiet: Quiet) -> None:
    words = r"is 3, and must be 1.*clone\(\).gradient_accumulation\(1\), with device_iterations"
    with pytest.raises(ValueError, match=words):
        inference_model(layered(2), quiet(TWO, gradient_accumulation=3))


def two_blocks(
    last: Any = tf.reduce_mean, *, between: Any = tf.identity, first: Any = None
) -> Callable[[tf.Tensor], Any]:
    """A model of two blocks; by default the first one has a weight, and nothing is between."""
    weight = tf.Variable(tf.ones([6, 6]))

    def model(x: tf.Tensor) -> Any:
        with Block("B1"):
            x = first(x) if first else x @ weight
        x = between(x)
        with Block("B2"):
            return last(x)

    return model


def test_an_operation_outside_all_blocks_with_its_type_and_line(quiet: Quiet) -> None:
    def squash(x: tf.Tensor) -> tf.Tensor:
        return tf.sinh(x)

    expected = r"Sinh at test_refusals.py:\d+: `return tf.sinh\(x\)` is outside all blocks.*B1, B2"
    with pytest.raises(ValueError, match=expected):
        train(two_blocks(between=squash), quiet(TWO, gradient_accumulation=3), X)


def test_an_effect_outside_all_blocks(quiet: Quiet) -> None:
    count = tf.Variable(0, trainable=False)

    def count_up(x: tf.Tensor) -> tf.Tensor:
        count.assign_add(1)
        return x

    with pytest.raises(ValueError, match=r"AssignAddVariableOp at test_refusals.py:\d+"):
        train(two_blocks(between=count_up), quiet(TWO, gradient_accumulation=3), X)
    assert count.numpy() == 0


def test_a_stage_that_uses_what_a_later_one_computes(quiet: Quiet) -> None:
    weight = tf.Variable(tf.ones([6, 6]))

    def model(x: tf.Tensor) -> tf.Tensor:
        with Block("B1"):
            x = x @ weight
        with Block("B2"):
            x = x @ weight
        with Block("B1"):
            return tf.reduce_mean(x)

    with pytest.raises(ValueError, match=r"block 'B1' in stage 0 uses Mean .*stage 1 \(B2\)"):
        train(model, quiet(TWO, gradient_accumulation=3), X)


def test_a_variable_changed_in_one_stage_and_used_in_another(quiet: Quiet) -> None:
    weight, count = tf.Variable(tf.ones([6, 6])), tf.Variable(0.0, trainable=False)

    def model(x: tf.Tensor) -> tf.Tensor:
        with Block("B1"):
            count.assign_add(1.0)
            x = x @ weight
        with Block("B2"):
            return tf.reduce_mean(x) * count

    with pytest.raises(ValueError, match=r"^a variable that .* in 2 stages: stage 0 at .*add"):
        train(model, quiet(TWO, gradient_accumulation=3), X)
    assert count.numpy() == 0
    train(model, quiet(ShardedExecution("B1", "B2"), gradient_accumulation=3), X)
    assert count.numpy() == 3


def test_a_block_inside_a_function_of_its_own(quiet: Quiet) -> None:
    weight = tf.Variable(tf.ones([6, 6]))

    @tf.function
    def inner(x: tf.Tensor) -> tf.Tensor:
        with Block("B2"):
            return x @ weight

    def model(x: tf.Tensor) -> tf.Tensor:
        with Block("B1"):
            x = x @ weight
        x = inner(x)
        with Block("B3"):
            return tf.reduce_mean(x)

    with pytest.raises(ValueError, match=r"^block 'B2' is inside a tf.function"):
        train(model, quiet(PipelinedExecution("B1", "B2", "B3"), gradient_accumulation=5), X[:10])


def test_options_changed_after_use(layered: Any, quiet: Quiet) -> None:
    options = quiet(TWO, gradient_accumulation=3)
    training_model(layered(2), options)
    with pytest.raises(AttributeError, match=r"clone\(\)"):
        options.gradient_accumulation(4)


@pytest.mark.parametrize(
    ("returned", "error", "words"),
    [
        (lambda loss: {"loss": loss}, TypeError, "returns its loss last.* returned dict"),
        (lambda loss: loss[None], ValueError, r"scalar of floating type, got shape \(1,\)"),
        (lambda loss: tf.cast(loss, tf.int32), ValueError, "got shape .* of int32"),
    ],
)
def test_a_model_for_training_without_a_loss(
    quiet: Quiet, returned: Any, error: type[Exception], words: str
) -> None:
    model = two_blocks(lambda x: returned(tf.reduce_mean(x)))
    with pytest.raises(error, match=words):
        train(model, quiet(TWO, gradient_accumulation=3), X)


def test_a_model_with_nothing_to_train(quiet: Quiet) -> None:
    model = two_blocks(first=lambda x: x * 2)
    with pytest.raises(ValueError, match=r"^no variable of the model gets a gradient"):
        train(model, quiet(TWO, gradient_accumulation=3), X)


def test_what_is_no_model_no_options_or_no_optimizer(layered: Any, quiet: Quiet) -> None:
    with pytest.raises(TypeError, match=r"^the model must be callable, got 'model'"):
        training_model("model", quiet())
    with pytest.raises(TypeError, match=r"^options must be .*Options, got 3"):
        inference_model(layered(2), 3)
    with pytest.raises(TypeError, match=r"optimizer must be one of Keras .* got 'adam'"):
        training_model(layered(2), quiet(), "adam")


def test_slots_on_the_host_for_weights_that_are_elsewhere(layered: Any, quiet: Quiet) -> None:
    model, options = layered(2), quiet(TWO, gradient_accumulation=3)
    train(model, options, X, X)
    with pytest.raises(
        ValueError, match=r'optimizer_state\("host"\) needs the weights on the host'
    ):
        train(model, options.clone().optimizer_state("host"), X, X)
