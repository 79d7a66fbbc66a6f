"""The origin of a value in a function: a replica's own data, or what all replicas have."""

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from tfdist.strategies import LocalStrategy
from tfdist.strategies.eager.replica_data import (
    adds_to,
    depends_on_replica,
    is_mean_of_rows,
    is_sum_of_rows,
)

WEIGHT = tf.Variable([1.0, 2.0])


def _in_function(ask: Callable[[tf.Tensor], Any]) -> Any:
    """Returns what `ask` says of a batch, [rows, 2], while a function is traced."""
    answers: list[Any] = []

    @tf.function(input_signature=[tf.TensorSpec([None, 2])])
    def function(batch: tf.Tensor) -> tf.Tensor:
        answers.append(ask(batch))
        return batch

    function.get_concrete_function()
    return answers[0]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (lambda x: tf.reduce_sum(x), True),
        (lambda x: tf.reduce_sum(tf.square(WEIGHT)), False),
        (lambda x: tf.random.uniform([]), True),
        (lambda x: tf.constant(1.0) + 2.0, False),
        (lambda x: tf.reduce_sum(WEIGHT) + tf.cast(tf.shape(x)[0], tf.float32), True),
    ],
)
def test_a_value_differs_between_replicas_if_it_is_computed_from_their_rows(
    value: Callable[[tf.Tensor], tf.Tensor], expected: bool
) -> None:
    assert _in_function(lambda x: depends_on_replica(value(x))) is expected


def test_of_a_value_outside_of_a_function_nothing_is_known() -> None:
    assert depends_on_replica(tf.constant(1.0)) is None


@pytest.mark.parametrize(
    ("value", "is_sum", "is_mean"),
    [
        (lambda x: tf.reduce_sum(x), True, False),
        (lambda x: 0.1 * tf.reduce_sum(tf.square(x), axis=0)[0], False, False),
        (lambda x: 0.1 * tf.reduce_sum(tf.reduce_mean(x, axis=1)), True, False),
        (lambda x: 2.0 * tf.reduce_mean(tf.reduce_sum(x, axis=1)), False, True),
        (lambda x: tf.reduce_mean(x) + tf.reduce_sum(tf.square(WEIGHT)), False, True),
        (lambda x: tf.reduce_mean(x[:, 0], axis=-1), False, True),
        (lambda x: tf.reduce_mean(x, axis=-1)[0], False, False),
        (lambda x: tf.reduce_sum(x) / tf.cast(tf.shape(x)[0], tf.float32), False, False),
        (lambda x: tf.reduce_sum(x) + tf.reduce_mean(x), False, False),
        (lambda x: tf.reduce_sum(tf.square(WEIGHT)), False, False),
        (lambda x: tf.reduce_max(x), False, False),
    ],
)
def test_a_sum_and_a_mean_over_rows_are_known_by_their_last_reduction(
    value: Callable[[tf.Tensor], tf.Tensor], is_sum: bool, is_mean: bool
) -> None:
    found = _in_function(lambda x: (is_sum_of_rows(value(x)), is_mean_of_rows(value(x))))
    assert found == (is_sum, is_mean)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (lambda v, x: v + tf.reduce_sum(x), True),
        (lambda v, x: tf.identity(v) - 1.0, True),
        (lambda v, x: tf.maximum(v, tf.reduce_max(x)), False),
        (lambda v, x: 2.0 * v, False),
    ],
)
def test_a_metric_adds_to_its_variable_or_assigns_another_value(
    value: Callable[[tf.Variable, tf.Tensor], tf.Tensor], expected: bool
) -> None:
    with LocalStrategy(num_replicas=2).scope():
        variable = tf.Variable(
            0.0,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )

    def ask(batch: tf.Tensor) -> bool:
        read = tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=tf.float32)
        return adds_to(variable, value(read, batch))

    assert _in_function(ask) is expected
