"""Random numbers in the code of replicas, in a program with a seed."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.strategies import LocalStrategy


def _draw() -> tf.Tensor:
    return tf.concat([tf.random.normal([2]), tf.random.uniform([2])], axis=0)


def _in_function(run: Callable[[Any], Any]) -> list[Any]:
    function = tf.function(lambda: (run(_draw), tf.random.normal([1])))
    return [function(), function()]


def _given_to_run(run: Callable[[Any], Any]) -> list[Any]:
    function = tf.function(_draw)
    return [(run(function), tf.random.normal([1])) for _ in range(2)]


def _called_in_replicas(run: Callable[[Any], Any]) -> list[Any]:
    inner = tf.function(_draw)
    return [(tf.function(lambda: run(lambda: inner() + inner()))(), tf.random.normal([1]))]


def _eagerly(run: Callable[[Any], Any]) -> list[Any]:
    return [(run(_draw), tf.random.normal([1])) for _ in range(2)]


_WAYS = [_in_function, _given_to_run, _called_in_replicas, _eagerly]


@pytest.mark.parametrize("way", _WAYS)
@pytest.mark.parametrize("num_replicas", [1, 2])
def test_the_first_replica_draws_the_numbers_of_one_process_and_another_draws_others(
    num_replicas: int, way: Callable[[Callable[[Any], Any]], list[Any]]
) -> None:
    strategy = LocalStrategy(num_replicas=num_replicas)

    def drawn(run: Callable[[Any], Any]) -> list[Any]:
        tf.random.set_seed(7)
        steps = []
        for inside, outside in way(run):
            each = strategy.experimental_local_results(inside)
            steps.append(([v.numpy().tolist() for v in each], outside.numpy().tolist()))
        return steps

    alone, replicas = drawn(lambda function: function()), drawn(strategy.run)
    for (own,), outside in alone:
        assert [step for step in replicas if step[1] == outside and step[0][0] == own]
    assert replicas == drawn(strategy.run)
    numbers = [number for step in replicas for each in step[0] for number in each]
    assert len(set(numbers)) == 4 * num_replicas * len(replicas)


def test_a_seed_of_an_op_is_the_users_and_without_a_seed_all_is_drawn() -> None:
    strategy = LocalStrategy(num_replicas=2)
    tf.random.set_seed(7)
    function = tf.function(lambda: strategy.run(lambda: tf.random.normal([2], seed=3)))
    first, second = strategy.experimental_local_results(function())
    np.testing.assert_array_equal(first, second)


def test_replicas_of_a_graph_draw_other_numbers_and_the_first_those_of_one_process() -> None:
    def drawn(strategy: LocalStrategy) -> tuple[list[Any], Any]:
        with tf.Graph().as_default(), strategy.scope():
            v1.set_random_seed(7)
            each = strategy.experimental_local_results(strategy.run(_draw))
            after = tf.random.normal([1])
            with v1.Session(config=strategy.update_config_proto(v1.ConfigProto())) as session:
                own, outside = session.run([each, after])
        return [one.tolist() for one in own], outside.tolist()

    ((alone,), outside), ((first, second), after) = (drawn(LocalStrategy(n)) for n in (1, 2))
    assert (first, after) == (alone, outside)
    assert not set(first) & set(second)
