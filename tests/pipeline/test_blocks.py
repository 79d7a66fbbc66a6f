"""Blocks in models of all kinds: as a context, a decorator, and at a layer."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from tfdist.pipeline import (
    AutoStage,
    Block,
    Options,
    PipelinedExecution,
    ShardedExecution,
    begin_block,
    inference_model,
    remove_blocks,
    training_model,
)

Quiet = Callable[..., Options]
X = np.random.default_rng(1).normal(size=(4, 3)).astype("float32")


def blocks_of(model: Any, options: Options, x: Any = X) -> list[tuple[str, ...]]:
    """The blocks of each stage, with one stage for each block."""
    predict = inference_model(model, options)
    predict(x)
    (program,) = predict._calls._programs.values()
    return [stage.blocks for stage in program.traced.stages]


@pytest.fixture
def automatic(quiet: Quiet) -> Callable[[], Options]:
    return lambda: quiet(ShardedExecution(AutoStage.AUTO_INCREMENT), device_iterations=2)


def test_a_decorated_function_is_a_block(automatic: Any) -> None:
    @Block("first")
    def first(x: tf.Tensor) -> tf.Tensor:
        return x + 1

    @Block("second")
    def second(x: tf.Tensor) -> tf.Tensor:
        return x * 2

    assert blocks_of(lambda x: second(first(x)), automatic()) == [("first",), ("second",)]
    np.testing.assert_allclose(second(first(3)), 8)


def test_a_block_without_a_name_is_numbered(automatic: Any) -> None:
    def model(x: tf.Tensor) -> tf.Tensor:
        for _ in range(2):
            with Block():
                x = x + 1
        return x

    assert blocks_of(model, automatic()) == [("block_1",), ("block_2",)]


def test_a_block_inside_another_one_changes_nothing(automatic: Any) -> None:
    def model(x: tf.Tensor) -> tf.Tensor:
        with Block("outer"):
            x = x + 1
            with Block("inner"):
                x = tf.sinh(x)
            return tf.cosh(x)

    with pytest.raises(ValueError, match="inner"):  # It is a block that no stage has.
        blocks_of(model, automatic().execution_strategy(ShardedExecution("outer")))
    predict = inference_model(model, automatic())
    np.testing.assert_allclose(predict(X), np.cosh(np.sinh(X + 1)), 1e-5)
    (program,) = predict._calls._programs.values()
    inner = program.traced.stages[1]
    assert inner.blocks == ("inner",)
    assert not program.traced.cut_stages[1].forward.outputs


def test_outside_the_building_of_a_pipelined_model_a_block_does_nothing() -> None:
    with Block("B1") as block:
        assert block.name == "B1"
        eager = tf.constant(1) + 1

    @tf.function
    def function(x: tf.Tensor) -> tf.Tensor:
        with Block("B1", device=3):
            return x + 1

    assert eager.numpy() == 2
    assert function(tf.constant(1)).numpy() == 2


def stack_of(library: Any) -> list[Any]:
    layers = library.layers
    return [layers.Dense(4), layers.ReLU(), layers.Dense(4), layers.Dense(2)]


def sequential(library: Any) -> tuple[Any, list[Any]]:
    stack = stack_of(library)
    return library.Sequential(stack), stack


def functional(library: Any) -> tuple[Any, list[Any]]:
    stack = stack_of(library)
    x = inputs = library.Input([3])
    for layer in stack:
        x = layer(x)
    return library.Model(inputs, x), stack


of_both = pytest.mark.parametrize("library", [tf_keras, keras], ids=["tf_keras", "Keras 3"])


@of_both
@pytest.mark.parametrize("make", [sequential, functional])
def test_a_block_begins_at_a_layer_and_lasts_until_the_next_one(
    quiet: Quiet, library: Any, make: Callable[[Any], Any]
) -> None:
    model, stack = make(library)
    assert begin_block(stack[0], "B1") is stack[0]
    begin_block(stack[2], "B2")
    options = quiet(PipelinedExecution("B1", "B2"), device_iterations=2)
    predict = inference_model(model, options)
    found = predict(X)
    np.testing.assert_allclose(found, model(X), 0, 1e-6)
    (program,) = predict._calls._programs.values()
    of_stage = [
        {op.type for op in stage.forward.function.graph.get_operations()}
        for stage in program.traced.cut_stages
    ]
    assert "Relu" in of_stage[0]
    assert "Relu" not in of_stage[1]
    # As in Keras, float64 is taken as float32.
    np.testing.assert_array_equal(predict(X.astype("float64")), found)


@of_both
def test_removed_blocks_are_gone(quiet: Quiet, library: Any) -> None:
    model, stack = functional(library)
    begin_block(stack[0], "B1")
    begin_block(stack[2], "B2")
    remove_blocks(model)
    with pytest.raises(ValueError, match="the model has no block"):
        inference_model(model, quiet(PipelinedExecution("B1", "B2"), device_iterations=2))(X)
    begin_block(stack[1], "B1")


def test_a_layer_begins_one_block_only() -> None:
    layer = begin_block(tf_keras.layers.Dense(1, name="out"), "B1")
    with pytest.raises(
        ValueError, match=r"block 'B1' begins at layer 'out' already.*remove_blocks"
    ):
        begin_block(layer, "B2")


def test_only_a_layer_can_begin_a_block() -> None:
    with pytest.raises(TypeError, match=r"takes a Keras layer, got .*with Block"):
        begin_block(tf.nn.relu, "B1")


def test_a_block_that_names_two_devices_is_refused(quiet: Quiet) -> None:
    def model(x: tf.Tensor) -> tf.Tensor:
        with Block("B1", device=0):
            x = x + 1
        with Block("B1", device=1):
            return x + 1

    with pytest.raises(ValueError, match=r"^block 'B1' names device 1, and device 0 before"):
        inference_model(model, quiet(PipelinedExecution(), device_iterations=2))(X)


def test_a_keras_3_layer_may_have_blocks_of_its_own(quiet: Quiet) -> None:
    class Both(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.layers = [keras.layers.Dense(4), keras.layers.Dense(2)]

        def call(self, x: Any) -> Any:
            for number, layer in enumerate(self.layers):
                with Block(f"B{number + 1}"):
                    x = layer(x)
            return x

    model = keras.Sequential([Both()])
    options = quiet(PipelinedExecution("B1", "B2"), device_iterations=2)
    np.testing.assert_allclose(inference_model(model, options)(X), model(X), 0, 1e-6)


def test_a_keras_model_is_trained_with_its_loss_in_the_last_block(quiet: Quiet) -> None:
    class WithLoss(tf_keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.inner, stack = sequential(tf_keras)
            begin_block(stack[0], "B1")
            begin_block(stack[2], "B2")

        def call(self, x: tf.Tensor, labels: tf.Tensor, training: Any = None) -> Any:
            logits = self.inner(x, training=training)
            with Block("B2"):
                return logits, tf.reduce_mean((logits - labels) ** 2)

    model = WithLoss()
    options = quiet(PipelinedExecution("B1", "B2"), gradient_accumulation=4, output_mode="all")
    train = training_model(model, options, tf_keras.optimizers.Adam(0.01))
    losses = [np.mean(train(X, X[:, :2])[1]) for _ in range(20)]
    assert losses[-1] < losses[0]
