"""The original's optimizers that wrap an optimizer."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist import training
from tfdist.ipu import optimizers
from tfdist.strategies import LocalStrategy

# The gradients that two replicas of a loss divided by 2 give.
OF_REPLICAS = ([3.0, 0.0], [0.0, 4.0])


def _weights_after(make: Callable[[], Any], calls: int) -> list[list[float]]:
    """Returns the weights after each call of `apply_gradients` on two replicas."""
    strategy = LocalStrategy(num_replicas=2)
    with tf.Graph().as_default(), strategy.scope():
        weight = v1.get_variable("w", initializer=tf.ones([2]))
        optimizer = make()

        def replica() -> Any:
            gradient = tf.constant(OF_REPLICAS[strategy.extended.replica_in_worker()])
            return optimizer.apply_gradients([(gradient, weight)])

        update = strategy.experimental_local_results(strategy.run(replica))
        found = []
        with v1.Session(config=strategy.update_config_proto(v1.ConfigProto())) as session:
            session.run(v1.global_variables_initializer())
            for _ in range(calls):
                session.run(update)
                found.append(session.run(weight).tolist())
        return found


class NeverReduces:
    """An optimizer whose apply_gradients assigns to the variables: gradients of norm 1."""

    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None) -> Any:
        return tf.group(*(v1.assign_sub(v, g / tf.norm(g)) for g, v in grads_and_vars))

    def variables(self) -> list[Any]:
        return []


def test_a_cross_replica_optimizer_reduces_for_one_that_does_not() -> None:
    found = _weights_after(lambda: optimizers.CrossReplicaOptimizer(NeverReduces()), 2)
    # Norm 5; two gradients of norm 1 would give [0, 0].
    np.testing.assert_allclose(found, [[0.4, 0.2], [-0.2, -0.6]], atol=1e-6)


def test_a_mapped_gradient_is_that_of_all_replicas() -> None:
    def clip_and_decay(gradient: Any, variable: Any) -> Any:
        return tf.clip_by_norm(gradient, 2.5) + 0.5 * variable

    found = _weights_after(
        lambda: optimizers.MapGradientOptimizer(training.SGD(1.0), clip_and_decay), 1
    )
    # Norm 5, clipped to 2.5; the decay of 0.5 counts once, and not for each replica.
    np.testing.assert_allclose(found, [[1 - 1.5 - 0.5, 1 - 2.0 - 0.5]], atol=1e-6)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda opt: optimizers.GradientAccumulationOptimizer(opt, 2), [-5.0, -7.0]),
        (lambda opt: optimizers.GradientAccumulationOptimizerV2(opt, 2), [-5.0, -7.0]),
        (
            lambda opt: optimizers.CrossReplicaGradientAccumulationOptimizerV2(
                opt, 2, reduction_method="running_mean"
            ),
            [-2.0, -3.0],
        ),
        (
            lambda opt: optimizers.GradientAccumulationOptimizerV2(
                optimizers.CrossReplicaOptimizer(opt),
                2,
                reduction_method=optimizers.GradientAccumulationReductionMethod.MEAN,
            ),
            [-2.0, -3.0],
        ),
    ],
)
def test_accumulation_updates_once_with_the_sum_unless_a_mean_is_asked(
    make: Callable[[Any], Any], expected: list[float]
) -> None:
    assert _weights_after(lambda: make(training.SGD(1.0)), 2) == [[1.0, 1.0], expected]


def test_a_sharded_optimizer_is_the_optimizer() -> None:
    optimizer = training.SGD(1.0)
    assert optimizers.ShardedOptimizer(optimizer) is optimizer
