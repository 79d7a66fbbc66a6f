"""Initial values: worker 0's, by the initializers alone or by a message after them."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.estimator.training.other_workers import _is_default
from tfdist.strategies import MultiWorkerStrategy, multi_worker


@pytest.fixture
def strategy(monkeypatch: pytest.MonkeyPatch) -> Iterator[MultiWorkerStrategy]:
    """One of two workers, which starts no server, in a graph of its own."""
    config = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    monkeypatch.setattr(multi_worker, "check_port", lambda cluster, task: None)
    monkeypatch.setattr(multi_worker, "keep_memory", lambda environ: False)
    with tf.Graph().as_default():
        yield MultiWorkerStrategy()


def build(strategy: MultiWorkerStrategy) -> None:
    """Builds a model with slots, a string, a variable without a gradient and the global step."""
    with strategy.scope():
        step = v1.train.get_or_create_global_step()
        kernel = v1.get_variable("kernel", [2, 3])
        v1.get_variable("names", initializer=tf.constant(["a"]))
        v1.get_variable("mean", [3], trainable=False)
        loss = tf.reduce_sum(kernel)
        [(gradient, _)] = v1.train.GradientDescentOptimizer(0.1).compute_gradients(loss, [kernel])
        v1.train.MomentumOptimizer(0.1, 0.9)._create_slots([kernel])
        v1.assign(kernel, gradient), step.assign_add(1)


def test_variables_of_the_scope_start_equal_without_a_message(
    strategy: MultiWorkerStrategy,
) -> None:
    build(strategy)
    names = {variable.op.name for variable in v1.global_variables()}
    assert names == {"global_step", "kernel", "names", "mean", "kernel/Momentum"}
    assert strategy.extended.starts_equal()


def test_a_variable_from_outside_the_scope_needs_a_message(strategy: MultiWorkerStrategy) -> None:
    build(strategy)
    v1.get_variable("own", [2])
    assert not strategy.extended.starts_equal()


def test_a_variable_that_starts_from_a_checkpoint_needs_a_message(
    strategy: MultiWorkerStrategy, tmp_path: Path
) -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        session.run(v1.get_variable("kernel", [2, 3]).initializer)
        v1.train.Saver().save(session, str(tmp_path / "other"))
    build(strategy)
    v1.train.init_from_checkpoint(str(tmp_path / "other"), {"kernel": "kernel"})
    assert not strategy.extended.starts_equal()


def test_a_variable_whose_replicas_have_own_values_needs_a_message(
    strategy: MultiWorkerStrategy,
) -> None:
    build(strategy)
    with strategy.scope():
        reads = {"synchronization": tf.VariableSynchronization.ON_READ}
        v1.get_variable("moving", [2], aggregation=v1.VariableAggregation.MEAN, **reads)
    assert not strategy.extended.starts_equal()


@pytest.mark.parametrize(
    ("arguments", "is_default"),
    [
        ({}, True),
        ({"local_init_op": tf.no_op}, True),
        ({"init_op": tf.no_op}, False),
        ({"init_fn": lambda: lambda scaffold, session: None}, False),
    ],
)
def test_what_the_user_initializes_needs_a_message(
    arguments: dict[str, Callable[[], Any]], is_default: bool
) -> None:
    with tf.Graph().as_default():
        scaffold = v1.train.Scaffold(**{name: make() for name, make in arguments.items()})
        assert _is_default(scaffold) == is_default
        v1.add_to_collection(v1.GraphKeys.INIT_OP, tf.no_op())
        assert not _is_default(scaffold)
