"""GradientAccumulationOptimizer updates once for several calls, as for their whole batch."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

import tfdist.estimator as tfe
from tfdist.training import (
    SGD,
    ClippedOptimizer,
    DistributedOptimizer,
    GradientAccumulationOptimizer,
)

X = np.random.default_rng(0).normal(size=(24, 5)).astype("float32")
OPTIMIZERS = {
    "momentum": lambda: v1.train.MomentumOptimizer(0.1, 0.9),
    "adam": lambda: v1.train.AdamOptimizer(0.1),
    "keras": lambda: DistributedOptimizer(tf.keras.optimizers.legacy.SGD(0.1, momentum=0.9)),
    "clipped": lambda: ClippedOptimizer(SGD(0.5, momentum=0.9), 0.1),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_the_wrapped_optimizer_gets_the_mean_once(
    take: Any, weights: Any, gradients: Any, kind: str
) -> None:
    pairs = [
        {name: (one[name] + other[name]) / 2 for name in weights}
        for one, other in zip(gradients[::2], gradients[1::2], strict=True)
    ]
    expected = take(OPTIMIZERS[kind](), weights, pairs)
    got = take(GradientAccumulationOptimizer(OPTIMIZERS[kind](), 2), weights, gradients)
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], value, atol=1e-6, err_msg=name)
    assert got["global_step"] == 5
    added = {name for name in got if "/accumulated" in name}
    assert len(added) == len(weights)
    assert all(not got[name].any() for name in added)


def test_between_two_updates_nothing_moves_but_the_sums(take: Any, weights: Any) -> None:
    gradients = {name: np.ones(np.shape(value)) for name, value in weights.items()}
    optimizer = GradientAccumulationOptimizer(OPTIMIZERS["adam"](), 3)
    got = take(optimizer, weights, [gradients, gradients])
    for name, value in weights.items():
        np.testing.assert_array_equal(got[name], value.astype("float32"))
        accumulated = got[f"{name}/GradientAccumulationOptimizer/accumulated"]
        np.testing.assert_array_equal(accumulated, 2 * gradients[name])
    assert got["global_step"] == 0
    assert got["accumulated_micro_batches"] == 2


def test_the_sum_is_taken_if_asked(take: Any) -> None:
    optimizer = GradientAccumulationOptimizer(SGD(1.0), 2, reduction_method="sum")
    values = take(optimizer, {"a": np.zeros(2)}, [{"a": np.ones(2)}, {"a": 2 * np.ones(2)}])
    np.testing.assert_array_equal(values["a"], [-3.0, -3.0])


def test_a_sparse_gradient_keeps_the_rows_of_all_micro_batches() -> None:
    """Momentum moves no row without a gradient, unless its gradient is dense."""

    def table_after(optimizer: Any, calls: list[list[int]]) -> Any:
        with tf.Graph().as_default(), v1.Session() as session:
            table = v1.get_variable("table", initializer=tf.ones([4, 2]))
            rows = v1.placeholder(tf.int32, [None])
            loss = tf.reduce_sum(tf.gather(table, rows)) / 2
            update = optimizer.minimize(loss, var_list=[table])
            session.run(v1.global_variables_initializer())
            for call in calls:
                session.run(update, {rows: call})
            return session.run(table)

    expected = table_after(OPTIMIZERS["momentum"](), [[0, 1, 1, 0], [2, 2]])
    scaled = GradientAccumulationOptimizer(OPTIMIZERS["momentum"](), 2, "sum")
    got = table_after(scaled, [[0, 1], [1, 0], [2], [2]])
    np.testing.assert_allclose(got, expected, atol=1e-6)


def test_replicas_are_reduced_before_they_are_added(take_on_replicas: Any) -> None:
    clipped = ClippedOptimizer(SGD(1.0), 2.5)
    found, step = take_on_replicas(lambda: GradientAccumulationOptimizer(clipped, 2), steps=2)
    np.testing.assert_allclose(found, [[0.0, 0.0], [-1.5, -2.0]], atol=1e-6)  # Norm 5, clipped.
    assert step == 1


def _estimator(folder: Path) -> tfe.Estimator:
    def model_fn(features: Any, mode: str) -> tfe.EstimatorSpec:
        weight = v1.get_variable("weight", initializer=tf.ones([5, 1]))
        loss = tf.reduce_mean(tf.square(tf.matmul(features, weight) - 1.0))
        optimizer = GradientAccumulationOptimizer(OPTIMIZERS["adam"](), 3)
        train_op = optimizer.minimize(loss, global_step=v1.train.get_global_step())
        return tfe.EstimatorSpec(mode, loss=loss, train_op=train_op)

    return tfe.Estimator(model_fn, folder)


def test_a_training_that_stops_between_two_updates_goes_on_with_the_same_bits(
    tmp_path: Path,
) -> None:
    def input_fn(first: int, end: int) -> Any:
        return lambda: tf.data.Dataset.from_tensor_slices(X[2 * first : 2 * end]).batch(2)

    undisturbed = _estimator(tmp_path / "undisturbed").train(input_fn(0, 12))
    _estimator(tmp_path / "stopped").train(input_fn(0, 4))
    resumed = _estimator(tmp_path / "stopped").train(input_fn(4, 12))
    assert resumed.get_variable_value("global_step") == 4
    for name in undisturbed.get_variable_names():
        one, other = (e.get_variable_value(name) for e in (undisturbed, resumed))
        np.testing.assert_array_equal(one, other, err_msg=name)
