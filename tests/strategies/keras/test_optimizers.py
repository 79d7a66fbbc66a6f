"""Optimizers that are told not to reduce the gradients of replicas."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from tfdist.strategies import LocalStrategy
from tfdist.strategies.keras.optimizers import UnreducedGradientsError

_ARGUMENTS = [
    {"skip_gradients_aggregation": True},
    {"experimental_aggregate_gradients": False},
]


def _sgd(kind: str) -> Any:
    if kind == "legacy":
        return tf_keras.optimizers.legacy.SGD(0.1)
    if kind == "scaled":
        return tf_keras.mixed_precision.LossScaleOptimizer(tf_keras.optimizers.SGD(0.1))
    return tf_keras.optimizers.SGD(0.1)


def _gradient() -> tf.Tensor:
    replica = tf.distribute.get_replica_context().replica_id_in_sync_group
    return tf.cast(replica, tf.float32) + 1.0


def _applied(num_replicas: int, kind: str, **arguments: bool) -> Any:
    strategy = LocalStrategy(num_replicas)
    with strategy.scope():
        weight, optimizer = tf.Variable(1.0), _sgd(kind)

    def step() -> None:
        optimizer.apply_gradients([(_gradient(), weight)], **arguments)

    strategy.run(step)
    return weight.numpy()


@pytest.mark.parametrize("kind", ["new", "legacy", "scaled"])
def test_gradients_that_may_not_be_reduced_are_refused_in_replicas_alone(kind: str) -> None:
    for arguments in _ARGUMENTS[1:] if kind == "legacy" else _ARGUMENTS:
        with pytest.raises(UnreducedGradientsError, match=r"in the code of 2 replicas\. Leave"):
            _applied(2, kind, **arguments)
        np.testing.assert_allclose(_applied(1, kind, **arguments), 0.9)
    np.testing.assert_allclose(_applied(2, kind), 0.7)


def test_reduced_gradients_are_applied_in_cross_replica_context() -> None:
    strategy = LocalStrategy(2)
    with strategy.scope():
        weight, optimizer = tf.Variable(1.0), _sgd("new")

    def replica() -> None:
        context = tf.distribute.get_replica_context()
        total = context.all_reduce("SUM", _gradient())
        clipped = tf.clip_by_value(total, -2.0, 2.0)
        context.merge_call(
            lambda _, gradient: optimizer.apply_gradients([(gradient.values[0], weight)]),
            args=(clipped,),
        )

    tf.function(lambda: strategy.run(replica))()
    np.testing.assert_allclose(weight.numpy(), 0.8)


@pytest.mark.parametrize("library", [keras, tf_keras])
def test_a_step_notes_the_bytes_of_its_dense_gradients(
    library: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: list[int] = []
    monkeypatch.setattr(LocalStrategy, "note_step", lambda _, size: noted.append(size))
    strategy = LocalStrategy(2)
    with strategy.scope():
        layers = library.layers
        model = library.Sequential(
            [layers.Embedding(1000, 4), layers.GlobalAveragePooling1D(), layers.Dense(3)]
        )
        model.compile("sgd", "mse")
    model.fit(np.ones([8, 2]), np.zeros([8, 3]), verbose=0)
    assert set(noted) == {4 * (4 * 3 + 3)}  # The kernel and the bias; the table's are rows.
