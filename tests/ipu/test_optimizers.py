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


def test_accumulation_refuses_what_the_original_refused() -> None:
    accumulate = optimizers.GradientAccumulationOptimizerV2
    with pytest.raises(
        ValueError, match=r"num_mini_batches must be an integer of at least 1, got 0"
    ):
        accumulate(training.SGD(1.0), 0)
    with pytest.raises(ValueError, match=r"num_mini_batches must be an integer .* got 1.5"):
        accumulate(training.SGD(1.0), 1.5)
    with pytest.raises(ValueError, match="Cannot parse 'MAX' as one of SUM, MEAN, RUNNING_MEAN"):
        accumulate(training.SGD(1.0), 2, reduction_method="MAX")


def test_accumulation_names_what_has_no_effect(logged: list[str]) -> None:
    optimizers.CrossReplicaGradientAccumulationOptimizerV2(
        training.SGD(1.0), 2, offload_weight_update_variables=False, dtype=tf.float16
    )
    assert logged == [
        "CrossReplicaGradientAccumulationOptimizerV2: no effect without an IPU: "
        "offload_weight_update_variables, dtype."
    ]


def test_a_map_around_accumulation_or_a_loss_scale_is_refused() -> None:
    for inner in (
        optimizers.GradientAccumulationOptimizerV2(training.SGD(1.0), 2),
        optimizers.AutomaticLossScalingOptimizer(training.SGD(1.0)),
    ):
        with pytest.raises(ValueError, match=r"Write \w+\(MapGradientOptimizer\(optimizer, func"):
            optimizers.MapGradientOptimizer(inner, lambda gradient, variable: gradient)
    with pytest.raises(TypeError, match=r"gradient_mapping_function must be a function .* got 3"):
        optimizers.MapGradientOptimizer(training.SGD(1.0), 3)  # type: ignore[arg-type]


def test_a_sharded_optimizer_is_the_optimizer_and_says_so(logged: list[str]) -> None:
    optimizer = training.SGD(1.0)
    assert optimizers.ShardedOptimizer(optimizer) is optimizer
    assert logged == ["ShardedOptimizer has no effect: updates run where their variables are."]
