"""Functions of TensorFlow in the code of replicas: each has its own number and counter."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from tfdist.strategies import LocalStrategy


@pytest.fixture(scope="module")
def strategy() -> LocalStrategy:
    return LocalStrategy(num_replicas=2)


def _replica() -> tf.Tensor:
    return tf.identity(tf.distribute.get_replica_context().replica_id_in_sync_group)


def _all_sum(value: Any) -> tf.Tensor:
    total: tf.Tensor = tf.distribute.get_replica_context().all_reduce("SUM", value)
    return total


def _results(strategy: LocalStrategy, function: Any, *args: Any, **kwargs: Any) -> list[Any]:
    results = strategy.run(function, args, kwargs)
    return [v.numpy().tolist() for v in strategy.experimental_local_results(results)]


def _numbers(strategy: LocalStrategy, dtype: tf.DType = tf.float32) -> Any:
    """Returns 1 on the first replica, [1, 1] on the second: rows of other lengths."""
    return strategy.experimental_distribute_values_from_function(
        lambda context: tf.ones([context.replica_id_in_sync_group + 1], dtype)
    )


def test_each_replica_runs_a_trace_of_its_own_and_counts_for_itself(
    strategy: LocalStrategy,
) -> None:
    with strategy.scope():
        count = tf.Variable(
            tf.zeros([2]),
            trainable=False,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )

    @tf.function
    def step() -> tf.Tensor:
        count.assign_add(tf.one_hot(_replica(), 2))
        return _replica()

    for calls in (1, 2):
        assert _results(strategy, step) == [0, 1]
        assert count.read_value().numpy().tolist() == [calls, calls]
    assert step.experimental_get_tracing_count() == 0  # Of its own; the replicas have another.


@pytest.mark.parametrize("aggregation", ["SUM", "MEAN", "ONLY_FIRST_REPLICA"])
def test_a_function_combines_what_replicas_assign(
    strategy: LocalStrategy, aggregation: str
) -> None:
    with strategy.scope():
        v = tf.Variable(1.0, aggregation=tf.VariableAggregation[aggregation])

    @tf.function
    def step() -> tf.Tensor:
        v.assign_add(tf.cast(_replica(), tf.float32) + 1.0)
        return v.read_value()

    value = 1.0 + {"SUM": 3.0, "MEAN": 1.5, "ONLY_FIRST_REPLICA": 1.0}[aggregation]
    assert _results(strategy, step) == [value, value]


def test_a_function_is_traced_once_for_all_calls_of_a_signature(strategy: LocalStrategy) -> None:
    traced = []

    @tf.function
    def step(rows: tf.Tensor, factor: float = 2.0) -> tf.Tensor:
        traced.append(rows.shape[0])
        return _all_sum(tf.reduce_sum(rows)) * factor

    for _ in range(3):
        assert _results(strategy, step, _numbers(strategy)) == [6.0, 6.0]
    assert traced == [1, 2]
    assert _results(strategy, step, _numbers(strategy), factor=3.0) == [9.0, 9.0]
    assert traced == [1, 2, 1, 2]


def test_a_signature_converts_what_all_replicas_get(strategy: LocalStrategy) -> None:
    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
    def step(rows: tf.Tensor) -> tf.Tensor:
        return _all_sum(tf.reduce_sum(rows)) + tf.cast(_replica(), tf.float32)

    assert _results(strategy, step, [1, 2]) == [6.0, 7.0]
    assert _results(strategy, step, _numbers(strategy)) == [3.0, 4.0]
    with pytest.raises(TypeError, match="Can not cast"):
        strategy.run(step, args=(tf.constant([[1.0]]),))


class _Module(tf.Module):
    @tf.function
    def step(self, x: tf.Tensor) -> tf.Tensor:
        return _all_sum(x) + 1.0


def test_methods_partials_and_converted_loops_are_run_for_each_replica(
    strategy: LocalStrategy,
) -> None:
    module = _Module()
    assert _results(strategy, module.step, tf.constant(2.0)) == [5.0, 5.0]
    assert _results(strategy, functools.partial(module.step, tf.constant(2.0))) == [5.0, 5.0]

    @tf.function
    def loop(limit: tf.Tensor) -> tf.Tensor:
        total = tf.constant(0)
        for i in tf.range(3):  # AutoGraph makes a loop of it.
            if i > limit:
                total += _replica() + 1
        return total

    assert _results(strategy, loop, tf.constant(0)) == [2, 4]
    in_function = tf.function(lambda: strategy.run(loop, args=(tf.constant(0),)))
    assert [v.numpy() for v in strategy.experimental_local_results(in_function())] == [2, 4]


def test_a_tensor_that_all_replicas_give_counts_for_each(strategy: LocalStrategy) -> None:
    shared = tf.constant(2.0)
    assert _results(strategy, lambda: _all_sum(shared)) == [4.0, 4.0]
    assert _results(strategy, tf.function(lambda: _all_sum(shared))) == [4.0, 4.0]
    assert strategy.reduce("SUM", shared, axis=None).numpy() == 4.0
    assert strategy.reduce("MEAN", shared, axis=None).numpy() == 2.0


def test_a_tape_outside_sees_through_the_function(strategy: LocalStrategy) -> None:
    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        return x * (1.0 + tf.cast(_replica(), tf.float32))

    x = tf.constant(2.0)
    with tf.GradientTape() as tape:
        tape.watch(x)
        total = tf.add_n(strategy.experimental_local_results(strategy.run(step, args=(x,))))
    assert tape.gradient(total, x).numpy() == 3.0


@pytest.mark.parametrize("way", ["eager", "in a function", "in a function given to run"])
def test_a_function_inside_of_the_code_has_a_trace_for_each_replica(
    strategy: LocalStrategy, way: str
) -> None:
    with strategy.scope():
        own = tf.Variable(
            0,
            trainable=False,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )

    @tf.function
    def inner() -> tf.Tensor:
        own.assign_add(_replica() + 1)
        return own.read_value()

    assert inner() == 1  # Outside of the strategy, where there is one replica.
    own.assign(0)

    def code() -> tf.Tensor:
        return inner() + inner()

    run: Callable[[], Any] = {
        "eager": lambda: strategy.run(code),
        "in a function": tf.function(lambda: strategy.run(code)),
        "in a function given to run": lambda: strategy.run(tf.function(code)),
    }[way]
    assert [v.numpy() for v in strategy.experimental_local_results(run())] == [3, 6]
    assert own.numpy() == 6


def test_devices_of_a_replica_are_one_name(strategy: LocalStrategy) -> None:
    found = []
    strategy.run(lambda: found.append(tf.distribute.get_replica_context().devices))
    assert [[name[-len("device:CPU:0") :] for name in names] for names in found] == [
        ["device:CPU:0"],
        ["device:CPU:0"],
    ]
