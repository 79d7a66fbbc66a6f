"""`tf.GradientTape` and variables with a copy on the device: the gradients of `tf.gradients`."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.estimator.config.settings import default_session_config
from tfdist.strategies.placement import Placement

_PLACEMENTS = {
    "host": Placement(device="/device:CPU:1"),
    "device": Placement(device="/device:CPU:1", variables_on_host=False),
}


@pytest.fixture(params=_PLACEMENTS)
def placement(request: pytest.FixtureRequest) -> Iterator[Placement]:
    placement = _PLACEMENTS[request.param]
    scope = tf.variable_creator_scope(placement.create_variable)
    with tf.Graph().as_default(), scope, placement.on_device():
        yield placement


def _weight() -> tf.Variable:
    return v1.get_variable("weight", initializer=v1.constant([1.0, -2.0, 3.0]))


def _values(placement: Placement, tensors: Any) -> Any:
    config = placement.configure(default_session_config())
    with v1.Session(config=config) as session:
        session.run(v1.global_variables_initializer())
        return session.run(tensors)


def _called(function: Callable[[], Any]) -> Any:
    return tf.function(function)()


def _in_a_branch(function: Callable[[], Any]) -> Any:
    return tf.cond(tf.constant(True), function, lambda: tf.constant(0.0))


def _in_a_loop(function: Callable[[], Any]) -> Any:
    def body(i: Any, total: Any) -> Any:
        return i + 1, total + function()

    return tf.while_loop(lambda i, _: i < 3, body, [0, 0.0])[1]


def _under_dependencies(function: Callable[[], Any]) -> Any:
    with tf.control_dependencies([tf.constant(0)]):
        return function()


@pytest.mark.parametrize(
    "where", [lambda f: f(), _called, _in_a_branch, _in_a_loop, _under_dependencies]
)
def test_a_tape_gives_the_gradients_of_tf_gradients(placement: Placement, where: Any) -> None:
    weight = _weight()
    before = weight * 1.0  # A read outside the tape, of the same copy.
    with tf.GradientTape() as tape:
        loss = where(lambda: tf.reduce_sum(weight * weight * weight))
    assert [v.name for v in tape.watched_variables()] == ["weight:0"]
    of_tape = tape.gradient(loss, weight)
    own, expected, _ = _values(placement, [of_tape, tf.gradients(loss, weight)[0], before])
    np.testing.assert_allclose(own, expected, atol=1e-6)
    assert np.abs(own).min() > 0


def test_a_persistent_tape_a_watched_variable_and_a_gather(placement: Placement) -> None:
    weight = _weight()
    with tf.GradientTape(persistent=True, watch_accessed_variables=False) as tape:
        unwatched = tf.reduce_sum(weight**2)
        tape.watch(weight)
        cube, rows = tf.reduce_sum(weight**3), tf.gather(weight, [0, 2])
    assert tape.gradient(unwatched, weight) is None
    own = [tape.gradient(cube, weight), tf.convert_to_tensor(tape.gradient(rows, weight))]
    cubes, gathered = _values(placement, own)
    np.testing.assert_allclose(cubes, [3.0, 12.0, 27.0], atol=1e-6)
    np.testing.assert_allclose(gathered, [1.0, 0.0, 1.0], atol=1e-6)


def test_nested_tapes_give_second_derivatives(placement: Placement) -> None:
    weight = _weight()
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            loss = tf.reduce_sum(weight**3)
        first = inner.gradient(loss, weight)
    second = outer.gradient(first, weight)
    expected = tf.gradients(tf.gradients(loss, weight)[0], weight)[0]
    own, stock = _values(placement, [second, expected])
    np.testing.assert_allclose(own, stock, atol=1e-6)
    np.testing.assert_allclose(own, [6.0, -12.0, 18.0], atol=1e-6)


def test_a_loss_as_a_function_is_minimized(placement: Placement) -> None:
    weight = _weight()
    step = v1.train.GradientDescentOptimizer(0.1).minimize(lambda: tf.reduce_sum(weight**2))
    with tf.control_dependencies([step]):
        after = weight.read_value()
    np.testing.assert_allclose(_values(placement, after), [0.8, -1.6, 2.4], atol=1e-6)


def test_reads_under_a_tape_cross_to_the_device_once() -> None:
    placement = _PLACEMENTS["host"]
    scope = tf.variable_creator_scope(placement.create_variable)
    with tf.Graph().as_default() as graph, scope, placement.on_device():
        weight = _weight()
        num_reads = sum(op.type == "ReadVariableOp" for op in graph.get_operations())
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight * weight + weight)
        assert tape.gradient(loss, weight) is not None
    assert sum(op.type == "ReadVariableOp" for op in graph.get_operations()) == num_reads
