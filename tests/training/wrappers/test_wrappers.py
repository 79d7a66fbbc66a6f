"""ClippedOptimizer and DistributedOptimizer work on reduced gradients, with replicas as without."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1
import tf_keras

from tfdist.training import LAMB, SGD, ClippedOptimizer, DistributedOptimizer


class NeverReduces(v1.train.Optimizer):  # type: ignore[misc]
    """Gradient descent as the optimizers of public BERT programs are written."""

    def __init__(self) -> None:
        super().__init__(False, "never_reduces")

    def apply_gradients(
        self, grads_and_vars: Any, global_step: Any = None, name: str | None = None
    ) -> Any:
        return tf.group(*(v.assign(v.read_value() - 0.5 * g) for g, v in grads_and_vars))


def _inner(kind: str) -> Any:
    return {
        "v1": lambda: v1.train.GradientDescentOptimizer(0.5),
        "tfdist": lambda: SGD(0.5),
        "keras": lambda: tf_keras.optimizers.legacy.SGD(0.5),
        "never reduces": NeverReduces,
    }[kind]()


@pytest.mark.parametrize("kind", ["v1", "tfdist", "keras", "never reduces"])
def test_a_gradient_is_clipped_by_the_norm_of_all(take: Any, kind: str) -> None:
    steps = [{"a": np.array([3.0, 0.0]), "b": np.array([[4.0]])}]  # norm 5
    start = {"a": np.zeros(2), "b": np.zeros((1, 1))}
    clipped = take(ClippedOptimizer(_inner(kind), 1.0), start, steps)
    np.testing.assert_allclose(clipped["a"], [-0.3, 0.0], atol=1e-6)
    np.testing.assert_allclose(clipped["b"], [[-0.4]], atol=1e-6)
    assert clipped["global_step"] == 1
    small = take(ClippedOptimizer(_inner(kind), 7.0), start, steps)
    np.testing.assert_allclose(small["a"], [-1.5, 0.0], atol=1e-6)
    zero = take(ClippedOptimizer(_inner(kind), 1.0), start, [{k: 0 * v for k, v in start.items()}])
    np.testing.assert_array_equal(zero["a"], [0.0, 0.0])


def test_a_norm_that_is_not_finite_shows(take: Any) -> None:
    values = take(ClippedOptimizer(SGD(0.5)), {"a": np.zeros(2)}, [{"a": np.array([1, np.inf])}])
    assert np.isnan(values["a"]).all()


def test_rows_that_stand_twice_count_as_their_sum() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        table = v1.get_variable("table", initializer=tf.zeros([3, 1]))
        slices = tf.IndexedSlices(
            tf.constant([[1.0], [4.0], [2.0]]), [2, 0, 2], tf.constant([3, 1])
        )
        update = ClippedOptimizer(v1.train.GradientDescentOptimizer(1.0)).apply_gradients(
            [(slices, table)]
        )
        session.run(v1.global_variables_initializer())
        session.run(update)
        np.testing.assert_allclose(session.run(table), [[-0.8], [0.0], [-0.6]], atol=1e-6)


@pytest.mark.parametrize("kind", ["v1", "tfdist", "keras", "never reduces"])
@pytest.mark.parametrize("wrapper", [ClippedOptimizer, DistributedOptimizer])
def test_replicas_get_the_reduced_gradient_once(
    take_on_replicas: Any, wrapper: Any, kind: str
) -> None:
    found, step = take_on_replicas(lambda: wrapper(_inner(kind)))
    divisor = 5.0 if wrapper is ClippedOptimizer else 1.0  # The norm of the sum.
    np.testing.assert_allclose(found, [np.array([-1.5, -2.0]) / divisor], atol=1e-6)
    assert step == 1


def test_slots_and_gradients_are_those_of_the_wrapped_optimizer() -> None:
    with tf.Graph().as_default():
        weight = v1.get_variable("w", initializer=tf.zeros([2]))
        wrapped = LAMB(0.1)
        optimizer = ClippedOptimizer(wrapped)
        optimizer.minimize(tf.reduce_sum(weight), var_list=[weight])
        assert optimizer.get_slot_names() == ["m", "v"]
        assert optimizer.get_slot(weight, "m") is wrapped.get_slot(weight, "m")
        names = {variable.op.name for variable in optimizer.variables()}
        assert names == {"w/LAMB/m", "w/LAMB/v", "beta1_power", "beta2_power"}
