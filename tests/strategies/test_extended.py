"""Reductions, results and variables of TensorFlow 2 over the replicas of one process."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.strategies import LocalStrategy
from tfdist.strategies.values.aggregated import AggregationError

_ON_READ = tf.VariableSynchronization.ON_READ
_SUM, _MEAN = tf.VariableAggregation.SUM, tf.VariableAggregation.MEAN


@pytest.fixture
def strategy() -> LocalStrategy:
    return LocalStrategy(num_replicas=2)


def _number() -> tf.Tensor:
    """Returns 1 on the first replica, 2 on the second."""
    return tf.distribute.get_replica_context().replica_id_in_sync_group + 1


def _integers(strategy: LocalStrategy, dtype: tf.DType) -> Any:
    """Returns [0, 1] on the first replica, [3, 1] on the second."""
    return strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant([3 * context.replica_id_in_sync_group, 1], dtype)
    )


def test_a_strategy_is_one_of_tensorflow_1_and_of_2(strategy: LocalStrategy) -> None:
    assert isinstance(strategy, v1.distribute.Strategy)
    assert isinstance(strategy, tf.distribute.Strategy)


def test_every_value_of_a_structure_is_reduced(strategy: LocalStrategy) -> None:
    def step() -> tuple[tf.Tensor, list[tf.Tensor]]:
        number = tf.cast(_number(), tf.float32)
        return number, [10.0 * number]

    with strategy.scope():
        one, (other,) = strategy.reduce("SUM", strategy.run(step), axis=None)
    assert (float(one), float(other)) == (3.0, 30.0)


@pytest.mark.parametrize("in_function", [False, True])
@pytest.mark.parametrize(
    ("dtype", "mean"), [(tf.int32, tf.float64), (tf.int64, tf.float64), (tf.uint8, tf.float32)]
)
def test_the_mean_of_integers_is_a_fraction(
    strategy: LocalStrategy, dtype: tf.DType, mean: tf.DType, in_function: bool
) -> None:
    values = _integers(strategy, dtype)

    def all_reduce(x: tf.Tensor) -> tf.Tensor:
        return tf.distribute.get_replica_context().all_reduce("MEAN", x)

    def means() -> list[Any]:
        in_replicas = strategy.experimental_local_results(strategy.run(all_reduce, (values,)))
        return [
            strategy.reduce("MEAN", values, axis=None),
            *in_replicas,
            strategy.reduce("MEAN", values, axis=0),
        ]

    *each, rows = (tf.function(means) if in_function else means)()
    assert [(one.dtype, one.numpy().tolist()) for one in each] == [(mean, [1.5, 1.0])] * 3
    assert rows.numpy() == 1.25


@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize("synchronization", ["AUTO", "ON_WRITE", "ON_READ"])
def test_a_variable_of_integers_with_a_mean_is_refused(
    strategy: LocalStrategy, synchronization: str, in_graph: bool
) -> None:
    def make() -> None:
        with strategy.scope():
            v1.get_variable(
                "steps",
                [],
                tf.int32,
                tf.zeros_initializer(),
                trainable=False,
                use_resource=True,
                synchronization=tf.VariableSynchronization[synchronization],
                aggregation=_MEAN,
            )

    line = r"steps:0 has aggregation MEAN and dtype int32, which cannot hold the mean"
    with pytest.raises(AggregationError, match=line):
        if in_graph:
            with tf.Graph().as_default():
                make()
        else:
            make()


def test_local_results_are_one_structure_for_each_replica(strategy: LocalStrategy) -> None:
    results = strategy.run(lambda: {"a": _number(), "b": [10 * _number()], "c": "text"})
    local = strategy.experimental_local_results(results)
    plain = [(one["a"].numpy(), one["b"][0].numpy(), one["c"]) for one in local]
    assert plain == [(1, 10, "text"), (2, 20, "text")]
    assert strategy.experimental_local_results(5) == (5,)
    assert strategy.experimental_local_results(None) == (None,)


def test_local_results_of_a_variable_are_the_values_of_its_replicas(
    strategy: LocalStrategy,
) -> None:
    with strategy.scope():
        shared = tf.Variable(7, aggregation=_SUM)
        counter = tf.Variable(0, trainable=False, synchronization=_ON_READ, aggregation=_SUM)
    strategy.run(lambda: counter.assign_add(_number()))
    with strategy.scope():
        local = strategy.experimental_local_results(counter)
        assert [one.numpy() for one in local] == [1, 2]
        both = strategy.experimental_local_results({"counter": counter, "shared": shared})
    assert [(one["counter"].numpy(), one["shared"].numpy()) for one in both] == [(1, 7), (2, 7)]
    assert strategy.reduce("SUM", counter, axis=None).numpy() == counter.numpy() == 3
    local[0].assign_add(10)  # As a part of a variable of MirroredStrategy.
    assert counter.numpy() == 13


def test_a_deep_copy_of_a_variable_combines_assignments_as_the_variable_does(
    strategy: LocalStrategy,
) -> None:
    with strategy.scope():
        weight = tf.Variable(0.0, aggregation=_MEAN)
        counter = tf.Variable(0.0, trainable=False, synchronization=_ON_READ, aggregation=_SUM)
    strategy.run(lambda: counter.assign_add(tf.cast(_number(), tf.float32)))
    copies = copy.deepcopy({"weight": weight, "counter": counter})

    def step() -> None:
        for variable in copies.values():
            variable.assign_add(tf.cast(_number(), tf.float32))

    strategy.run(step)
    assert (weight.numpy(), counter.numpy()) == (0.0, 3.0)
    assert (copies["weight"].numpy(), copies["counter"].numpy()) == (1.5, 6.0)
    own = strategy.experimental_local_results(copies["counter"])
    assert [one.numpy() for one in own] == [2.0, 4.0]
    for name, variable in {"weight": weight, "counter": counter}.items():
        assert copies[name].aggregation == variable.aggregation
        assert copies[name].synchronization == variable.synchronization


def test_a_variable_of_one_replica_keeps_its_aggregation_in_a_copy() -> None:
    with LocalStrategy(num_replicas=1).scope():
        variable = tf.Variable(0.0, synchronization=_ON_READ, aggregation=_SUM, trainable=False)
    copied = copy.deepcopy(variable)
    assert (copied.aggregation, copied.synchronization) == (_SUM, _ON_READ)


@pytest.mark.parametrize("is_traced_before", [False, True])
def test_a_saved_module_has_the_combined_value_of_a_counter(
    strategy: LocalStrategy, tmp_path: Path, is_traced_before: bool
) -> None:
    with strategy.scope():
        module = tf.Module()
        module.weight = tf.Variable([1.0, 2.0])
        module.counter = tf.Variable(
            1.0, trainable=False, synchronization=_ON_READ, aggregation=_SUM
        )
        module.function = tf.function(
            lambda x: module.weight * x + module.counter,
            None if is_traced_before else [tf.TensorSpec([], tf.float32)],
        )
    strategy.run(lambda: (module.counter.assign_add(1.0), None)[1])
    if is_traced_before:  # With the sum over the replicas in it.
        np.testing.assert_array_equal(module.function(tf.constant(2.0)), [6.0, 8.0])
    tf.saved_model.save(module, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    np.testing.assert_array_equal(loaded.function(tf.constant(2.0)), [6.0, 8.0])
    np.testing.assert_array_equal(module.function(tf.constant(2.0)), [6.0, 8.0])
    assert loaded.counter.numpy() == 4.0
