"""Replicas that change their variables without reducing anything are refused."""

from typing import Any

import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1
import tf_keras

import tfdist.estimator as tfe
from tfdist.estimator.loop import reduction_check
from tfdist.strategies import LocalStrategy
from tfdist.strategies.reductions.grpc_collectives import GrpcCollectives

SGD = v1.train.GradientDescentOptimizer


class OwnDescent(SGD):  # type: ignore[misc]
    """Assigns the variables itself, as the optimizer of google-research/bert does."""

    def apply_gradients(self, pairs: Any, global_step: Any = None, name: Any = None) -> Any:
        return tf.group(*(variable.assign_sub(0.1 * gradient) for gradient, variable in pairs))


class Checked(SGD):  # type: ignore[misc]
    """Overrides apply_gradients and leaves the update to its base class."""

    def apply_gradients(self, pairs: Any, global_step: Any = None, name: Any = None) -> Any:
        return super().apply_gradients(list(pairs), global_step, name)


def _weights() -> list[tf.Variable]:
    start = v1.ones_initializer()
    return [v1.get_variable(f"weight_{i}", [2], initializer=start) for i in range(2)]


def _train(make_train_op: Any, iterations: int = 1) -> None:
    """Trains one step of two replicas; `make_train_op(loss)` builds the rest of the model_fn."""

    def model_fn(features: Any, mode: str) -> tfe.EstimatorSpec:
        loss = tf.add_n([tf.reduce_sum(features * weight) for weight in _weights()])
        return tfe.EstimatorSpec(mode, loss=loss, train_op=make_train_op(loss))

    def input_fn() -> tf.data.Dataset:
        return tf.data.Dataset.from_tensors([1.0, 2.0]).repeat()

    device = tfe.DeviceConfig(num_replicas=2, iterations_per_loop=iterations)
    tfe.Estimator(model_fn, config=tfe.RunConfig(device=device)).train(input_fn, steps=iterations)


@pytest.mark.parametrize("iterations", [1, 2])
def test_an_optimizer_that_never_reduces_is_refused_by_name(iterations: int) -> None:
    message = (
        r"OwnDescent.apply_gradients \(.*test_reduction_check.py:\d+\) changes trainable variables "
        r"and reduces no gradient: 2 replicas .*DistributedOptimizer\(optimizer\).*"
        r"super\(\).apply_gradients"
    )
    with pytest.raises(tfe.ModelMismatchError, match=message):
        _train(OwnDescent(0.1).minimize, iterations)


def test_variables_that_are_assigned_without_an_optimizer_are_refused() -> None:
    with pytest.raises(tfe.ModelMismatchError, match=r"The op '.*' changes trainable variables"):
        _train(lambda loss: v1.trainable_variables()[0].assign_sub([1.0, 1.0]))


def _frozen(loss: Any) -> Any:
    counter = v1.get_variable("moving", [], initializer=v1.zeros_initializer(), trainable=False)
    read_in_a_function = tf.function(lambda: v1.trainable_variables()[0] * 2.0)()
    with tf.control_dependencies([loss, read_in_a_function]):
        return counter.assign_add(1.0).op


def _two_optimizers(loss: Any) -> Any:
    first, second = v1.trainable_variables()
    return tf.group(
        SGD(0.1).minimize(loss, var_list=[first]), OwnDescent(0.1).minimize(loss, var_list=[second])
    )


def _own_reduction(loss: Any) -> Any:
    variables = v1.trainable_variables()
    context = tf.distribute.get_replica_context()
    reduced = context.all_reduce(tf.distribute.ReduceOp.MEAN, tf.gradients(loss, variables))
    return OwnDescent(0.1).apply_gradients(zip(reduced, variables, strict=True))


def _legacy_keras(loss: Any) -> Any:
    optimizer = tf_keras.optimizers.legacy.SGD(0.1)
    return tf.group(*optimizer.get_updates(loss, v1.trainable_variables()))


@pytest.mark.parametrize(
    ("make_train_op", "iterations"),
    [
        (lambda loss: SGD(0.1).minimize(loss), 1),
        (lambda loss: Checked(0.1).minimize(loss), 1),
        (lambda loss: SGD(0.1).minimize(loss), 2),
        (_legacy_keras, 1),
        (_frozen, 1),
        (_frozen, 2),
        (_two_optimizers, 1),
        (_own_reduction, 1),
    ],
)
def test_what_reduces_or_changes_nothing_trains(make_train_op: Any, iterations: int) -> None:
    _train(make_train_op, iterations)


def test_statistics_of_a_batch_norm_are_no_reduced_gradients() -> None:
    extended = LocalStrategy(num_replicas=1).extended
    extended.reducer._collectives = GrpcCollectives(2, 0)
    with tf.Graph().as_default() as graph:
        rows = extended.reducer.gather_rows(tf.ones([1, 3]), "statistics of norm")
        assert rows.shape == [2, 3]
        assert extended.reducer.built.described == ["statistics of norm (float32 (1, 3))"]
        assert not reduction_check._has_own_reductions(graph)
        extended.collectives.sum([tf.ones([3])], "gradient")
        assert reduction_check._has_own_reductions(graph)
