"""Checks before the first step; test_bad_input.py has the comparison of models in real runs."""

from typing import Any

import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1
import tf_keras

import tfdist.estimator as tfe
from tfdist.estimator.loop import model_check
from tfdist.estimator.loop.model_check import (
    LimitMismatchError,
    ModelMismatchError,
    check_limits,
    check_models,
    describe_model,
)
from tfdist.strategies import LocalStrategy
from tfdist.strategies.grpc.collectives import GrpcCollectives

SGD = v1.train.GradientDescentOptimizer

# Equal models and limits on all workers.


def model(*variables: tuple[str, list[int], tf.DType]) -> str:
    """A worker's description of these variables."""
    with tf.Graph().as_default():
        made = [v1.get_variable(name, shape, dtype) for name, shape, dtype in variables]
        return describe_model(made, [], {}, {"iterations_per_loop": 1})


FIRST = ("first", [2], tf.float32)
MORE = ("more", [3], tf.float32)


@pytest.mark.parametrize(
    ("models", "difference"),
    [
        (
            [model(FIRST), model(FIRST), model(FIRST, MORE)],
            "variable more (float32 (3,)) exists on worker 2 but not on worker 0",
        ),
        (
            [model(FIRST, MORE), model(FIRST)],
            "variable more (float32 (3,)) exists on worker 0 but not on worker 1",
        ),
        (
            [model(MORE), model(("more", [3], tf.float64))],
            "variable more is float32 (3,) on worker 0 and float64 (3,) on worker 1",
        ),
    ],
)
def test_the_first_difference_is_named_with_its_worker(models: list[str], difference: str) -> None:
    check_models(models[:1] * 3)
    with pytest.raises(ModelMismatchError) as caught:
        check_models(models)
    assert str(caught.value).startswith(f"The workers' models differ: {difference}. Start all")


@pytest.mark.parametrize(
    ("limits", "difference"),
    [
        ([(4, None), (4, None), (5, None)], "steps is 4 on worker 0 and 5 on worker 2."),
        ([(None, 4), (None, None)], "max_steps is 4 on worker 0 and None on worker 1."),
    ],
)
def test_different_limits_are_named(
    limits: list[tuple[int | None, int | None]], difference: str
) -> None:
    with pytest.raises(LimitMismatchError, match=f"^{difference}"):
        check_limits(limits)


# A step that learns nothing, and replicas that change variables without reducing anything.


def _train(train_op_of: Any, *, number: int = 2, replicas: int = 1, iterations: int = 1) -> None:
    """Trains one session call; `train_op_of(loss)` builds the rest of the model_fn."""

    def model_fn(features: Any, mode: str) -> tfe.EstimatorSpec:
        ones = v1.ones_initializer()
        weights = [v1.get_variable(f"weight_{i}", [2], initializer=ones) for i in range(number)]
        loss = tf.add_n([tf.reduce_sum(features * weight) for weight in [features, *weights]])
        return tfe.EstimatorSpec(mode, loss=loss, train_op=train_op_of(loss))

    def input_fn() -> tf.data.Dataset:
        return tf.data.Dataset.from_tensors([1.0, 2.0]).repeat()

    device = tfe.DeviceConfig(num_replicas=replicas, iterations_per_loop=iterations)
    tfe.Estimator(model_fn, config=tfe.RunConfig(device=device)).train(input_fn, steps=iterations)


def _with_newer_keras_optimizer(loss: Any) -> Any:
    weights = v1.trainable_variables()
    gradients = tf.gradients(loss, weights)
    return tf_keras.optimizers.SGD(0.1).apply_gradients(zip(gradients, weights, strict=True))


def _in_a_branch(loss: Any) -> Any:
    weight = v1.trainable_variables()[0]
    return tf.cond(loss > 0.0, lambda: weight.assign_add([1.0, 1.0]), lambda: weight + 0.0)


def _legacy_keras(loss: Any) -> Any:
    optimizer = tf_keras.optimizers.legacy.SGD(0.1)
    return tf.group(*optimizer.get_updates(loss, v1.trainable_variables()))


def _assigned(loss: Any) -> Any:
    return v1.trainable_variables()[0].assign_sub([1.0, 1.0])


@pytest.mark.parametrize(
    ("train_op_of", "number", "is_warned"),
    [
        (lambda loss: tf.no_op(), 2, True),
        (_with_newer_keras_optimizer, 2, True),
        (lambda loss: tf.no_op(), 0, False),
        (SGD(0.1).minimize, 2, False),
        (v1.train.AdamOptimizer(0.1).minimize, 2, False),
        (_assigned, 2, False),
        (_legacy_keras, 2, False),
        (_in_a_branch, 2, False),
    ],
)
def test_a_step_that_changes_no_weight_is_warned_of(
    logged: list[str], train_op_of: Any, number: int, is_warned: bool
) -> None:
    _train(train_op_of, number=number)
    warnings = [line for line in logged if line.startswith("train_op changes none")]
    assert len(warnings) == is_warned
    assert not is_warned or "none of the 2 trainable variables" in warnings[0]


class OwnDescent(SGD):  # type: ignore[misc]
    """Assigns the variables itself, as the optimizer of google-research/bert does."""

    def apply_gradients(self, pairs: Any, global_step: Any = None, name: Any = None) -> Any:
        return tf.group(*(variable.assign_sub(0.1 * gradient) for gradient, variable in pairs))


class Checked(SGD):  # type: ignore[misc]
    """Overrides apply_gradients and leaves the update to its base class."""

    def apply_gradients(self, pairs: Any, global_step: Any = None, name: Any = None) -> Any:
        return super().apply_gradients(list(pairs), global_step, name)


OF_OPTIMIZER = (
    r"OwnDescent.apply_gradients \(.*test_model_check.py:\d+\) changes trainable variables and "
    r"reduces no gradient: 2 replicas .*DistributedOptimizer\(optimizer\).*super\(\).apply_gradien"
)


@pytest.mark.parametrize(
    ("train_op_of", "iterations", "message"),
    [
        (lambda loss: OwnDescent(0.1).minimize(loss), 1, OF_OPTIMIZER),
        (lambda loss: OwnDescent(0.1).minimize(loss), 2, OF_OPTIMIZER),
        (_assigned, 1, r"The op '.*' changes trainable variables"),
    ],
)
def test_replicas_that_never_reduce_are_refused_by_name(
    train_op_of: Any, iterations: int, message: str
) -> None:
    with pytest.raises(ModelMismatchError, match=message):
        _train(train_op_of, replicas=2, iterations=iterations)


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


@pytest.mark.parametrize(
    ("train_op_of", "iterations"),
    [
        (lambda loss: Checked(0.1).minimize(loss), 1),
        (lambda loss: SGD(0.1).minimize(loss), 2),
        (_legacy_keras, 1),
        (_frozen, 2),
        (_two_optimizers, 1),
        (_own_reduction, 1),
    ],
)
def test_replicas_that_reduce_or_change_nothing_train(train_op_of: Any, iterations: int) -> None:
    _train(train_op_of, replicas=2, iterations=iterations)


def test_statistics_of_a_batch_norm_are_no_reduced_gradients(graph: tf.Graph) -> None:
    extended = LocalStrategy(num_replicas=1).extended
    extended.reducer._collectives = GrpcCollectives(2, 0)
    rows = extended.reducer.gather_rows(tf.ones([1, 3]), "statistics of norm")
    assert rows.shape == [2, 3]
    assert extended.reducer.built.described == ["statistics of norm (float32 (1, 3))"]
    assert not model_check._has_own_reductions(graph)
    extended.collectives.sum([tf.ones([3])], "gradient")
    assert model_check._has_own_reductions(graph)
