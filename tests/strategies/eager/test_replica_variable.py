"""Variables of which each replica has its own values: what a read gives, in which code."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfdist.strategies import LocalStrategy
from tfdist.strategies.eager.replica_variable import AggregationError

# Ops that TensorFlow executes at once; it may read a variable's handle by itself.
READS: dict[str, Callable[[Any], Any]] = {
    "value": lambda v: v.value(),
    "operator": lambda v: v * 1.0,
    "multiply": lambda v: tf.multiply(v, 1.0),
    "raw": lambda v: tf.raw_ops.Relu(features=v),
    "gather": lambda v: tf.gather(v, [0, 1]),
    "gather_nd": lambda v: tf.gather_nd(v, [[0], [1]]),
    "sparse_read": lambda v: v.sparse_read([0, 1]),
}


@pytest.fixture
def strategy() -> LocalStrategy:
    return LocalStrategy(num_replicas=2)


@pytest.fixture
def variable(strategy: LocalStrategy) -> tf.Variable:
    """A sum over the replicas, of which the first has [1, 10] and the second [2, 20]."""
    with strategy.scope():
        made = tf.Variable(
            tf.zeros([2]),
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )

    def assign() -> None:
        made.assign(tf.constant([1.0, 10.0]) * _number())

    strategy.run(assign)
    return made


def _number() -> tf.Tensor:
    replica = tf.distribute.get_replica_context().replica_id_in_sync_group
    return tf.cast(replica, tf.float32) + 1.0


@pytest.mark.parametrize("in_function", [False, True])
@pytest.mark.parametrize("name", READS)
def test_a_read_outside_of_replicas_is_their_sum(
    variable: tf.Variable, name: str, in_function: bool
) -> None:
    read = tf.function(READS[name]) if in_function else READS[name]
    np.testing.assert_array_equal(read(variable), [3.0, 30.0])


@pytest.mark.parametrize("in_function", [False, True])
@pytest.mark.parametrize("name", READS)
def test_a_read_in_the_code_of_a_replica_is_its_own(
    strategy: LocalStrategy, variable: tf.Variable, name: str, in_function: bool
) -> None:
    def read() -> Any:
        return strategy.experimental_local_results(strategy.run(READS[name], (variable,)))

    values = tf.function(read)() if in_function else read()
    np.testing.assert_array_equal(values, [[1.0, 10.0], [2.0, 20.0]])


def test_a_replica_updates_rows_of_its_own_value_alone(
    strategy: LocalStrategy, variable: tf.Variable
) -> None:
    strategy.run(lambda: variable.scatter_add(_row(100.0 * _number(), 1)))
    own = strategy.experimental_local_results(strategy.run(variable.read_value))
    np.testing.assert_array_equal(own, [[1.0, 110.0], [2.0, 220.0]])


def test_rows_outside_of_replicas_are_those_of_all_or_refused(
    strategy: LocalStrategy, variable: tf.Variable
) -> None:
    with strategy.scope():
        average = tf.Variable([1.0, 2.0], trainable=False)  # Of each replica, without aggregation.
    average.scatter_update(_row(5.0, 1), name="update")
    own = strategy.experimental_local_results(strategy.run(average.read_value))
    np.testing.assert_array_equal(own, [[1.0, 5.0], [1.0, 5.0]])
    with pytest.raises(AggregationError, match=r"Variable:0\.scatter_max outside strategy\.run"):
        variable.scatter_max(_row(5.0, 1))


def _row(value: Any, index: int) -> tf.IndexedSlices:
    return tf.IndexedSlices(tf.reshape(value, [1]), tf.constant([index]))
