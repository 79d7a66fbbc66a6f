from collections.abc import Callable, Sequence
from typing import Any

import pytest
import tensorflow as tf

from tfdist.pipeline.graph.cutting import Piece
from tfdist.pipeline.graph.execution import Calls

ONE_THREAD = b"SINGLE_THREADED_EXECUTOR"
X = tf.TensorSpec([2], tf.float32)


def piece_of(function: Callable[..., Any], *specs: Any) -> Piece:
    concrete = tf.function(
        lambda *values: [function(*values)], experimental_attributes={"_noinline": True}
    ).get_concrete_function(*specs)
    return Piece(function=concrete, inputs=(), outputs=())


def calls_in_a_function(
    piece: Piece, devices: Sequence[str], *more: Any
) -> tuple[list[tf.Operation], list[float]]:
    """Calls a piece in a tf.function, on each device in turn; returns the calls and a result."""
    calls: list[tf.Operation] = []

    def run(x: tf.Tensor) -> tf.Tensor:
        of_graph = Calls()
        for device in devices:
            (y,) = of_graph.add(piece, [x, *more], device)
            calls.append(y.op)
        return y

    compiled = tf.function(run, autograph=False).get_concrete_function(X)
    return calls, compiled(tf.constant([1.0, 2.0])).numpy().tolist()


def looped(x: tf.Tensor) -> tf.Tensor:
    return tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, 2 * y), (0, x))[1]


def test_a_cpu_device_runs_a_stage_in_one_thread() -> None:
    (call,), result = calls_in_a_function(piece_of(lambda x: 3 * x, X), ["/device:CPU:1"])
    assert call.get_attr("executor_type") == ONE_THREAD
    assert result == [3.0, 6.0]


@pytest.mark.parametrize(
    "function",
    [looped, lambda x: tf.function(looped)(x), lambda x: tf.map_fn(lambda one: 8 * one, x)],
    ids=["loop", "loop in a nested function", "map"],
)
def test_a_stage_with_a_loop_keeps_all_threads(function: Callable[..., Any]) -> None:
    (call,), result = calls_in_a_function(piece_of(function, X), ["/device:CPU:1"])
    assert call.get_attr("executor_type") == b""
    assert result == [8.0, 16.0]


@pytest.mark.parametrize(
    ("home", "executor"), [("/device:CPU:1", ONE_THREAD), ("/device:CPU:0", b"")]
)
def test_a_stage_with_a_variable_has_one_thread_if_that_is_on_its_device(
    home: str, executor: bytes
) -> None:
    with tf.device(home):
        variable = tf.Variable([5.0, 5.0])
    piece = piece_of(
        lambda x, handle: x + tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32),
        X,
        tf.TensorSpec([], tf.resource),
    )
    (call,), _ = calls_in_a_function(piece, ["/device:CPU:1"], variable.handle)
    assert call.get_attr("executor_type") == executor


def test_random_draws_do_not_make_calls_take_turns() -> None:
    piece = piece_of(lambda x: x + tf.random.uniform([2]), X)
    devices = ["/device:CPU:1", "/device:CPU:2", "/device:CPU:1"]
    calls, _ = calls_in_a_function(piece, devices)
    assert {call.type for call in calls} == {"StatefulPartitionedCall"}
    assert [call.control_inputs for call in calls] == [[], [], []]


def test_a_later_call_takes_over_from_the_first_what_would_be_inferred_again() -> None:
    piece = piece_of(lambda x: 3 * x, X)
    (first, second), result = calls_in_a_function(piece, ["/device:CPU:1"] * 2)
    assert second.get_attr("_disable_call_shape_inference")
    assert second.get_attr("executor_type") == ONE_THREAD
    assert second.get_attr("f").name == first.get_attr("f").name
    assert second.outputs[0].shape == [2]
    assert result == [3.0, 6.0]
