"""The tensors that each variable is used with in the forward pass."""

from typing import Any

import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.estimator.loop.variable_inputs import find_variable_inputs


def build(order: str, rows: int | None = None, is_chief: bool = False) -> dict[str, list[str]]:
    """Two towers of numbered layers, made in an order, and a layer over both."""
    with tf.Graph().as_default():
        features = {name: v1.placeholder(tf.float32, [rows, 2]) for name in "ab"}
        labels = v1.placeholder(tf.float32, [rows, 1])
        towers = {}
        for number, name in enumerate(order):
            kernel = v1.get_variable(f"kernel_{number}", [2, 2])
            towers[name] = tf.nn.relu(tf.matmul(features[name], tf.identity(kernel)))
        if is_chief:
            v1.summary.histogram("towers", towers["a"])
        both = tf.concat([towers["a"], towers["b"]], axis=1)
        outputs = tf.matmul(both, v1.get_variable("last", [4, 1]))
        v1.get_variable("unused", [3])
        loss = tf.reduce_mean(tf.square(outputs - labels))
        variables = v1.trainable_variables()
        v1.train.GradientDescentOptimizer(0.1).minimize(loss)
        return find_variable_inputs(loss, variables, features, labels)


def test_a_variable_has_the_inputs_and_variables_of_its_operations_other_operands() -> None:
    assert build("ab") == {
        "kernel_0": ["features a"],
        "kernel_1": ["features b"],
        "last": ["features a", "features b", "kernel_0", "kernel_1"],
    }


def test_another_order_of_creation_is_seen() -> None:
    assert build("ba")["kernel_0"] == ["features b"]


@pytest.mark.parametrize("options", [{"rows": 7}, {"is_chief": True}])
def test_batch_sizes_and_summaries_make_no_difference(options: dict[str, Any]) -> None:
    assert build("ab", **options) == build("ab")
