"""The original's device options: what they change, and which are said to change nothing."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow
import tf_keras

from tfdist import training
from tfdist.ipu import (
    config,
    ipu_pipeline_estimator,
    ipu_run_config,
    pipelining_ops,
    utils,
)
from tfdist.ipu import tensorflow as tf
from tfdist.strategies import LocalStrategy
from tfdist.training.stochastic_rounding import is_stochastic_rounding_enabled

v1 = tensorflow.compat.v1


@pytest.fixture(autouse=True)
def defaults_afterwards() -> Iterator[None]:
    yield
    config.IPUConfig().configure_ipu_system()


# What options change.


def _weight_after_small_updates() -> float:
    """Returns the mean of float16 weights of 1000 after 100 updates of 1e-3."""
    with tensorflow.Graph().as_default(), v1.Session() as session:
        v1.train.create_global_step()
        weight = v1.get_variable("w", initializer=tensorflow.fill([2000], np.float16(1000)))
        gradient = tensorflow.fill([2000], 1e-3)
        step = v1.train.get_global_step()
        update = training.SGD(1.0).apply_gradients([(gradient, weight)], global_step=step)
        session.run(v1.global_variables_initializer())
        for _ in range(100):
            session.run(update)
        return float(session.run(weight).astype(np.float64).mean())


def test_esr_switches_the_stochastic_rounding_of_half_weights() -> None:
    options = config.IPUConfig()
    for esr, expected in (
        (config.StochasticRoundingBehaviour.OFF, 1000.0),
        (config.StochasticRoundingBehaviour.REPLICA_IDENTICAL_ONLY, 999.9),
    ):
        options.floating_point_behaviour.esr = esr
        options.configure_ipu_system()
        assert _weight_after_small_updates() == pytest.approx(expected, abs=0.03)


def test_options_that_do_not_set_esr_leave_the_optimizers_own_argument() -> None:
    utils.configure_ipu_system(
        utils.set_floating_point_behaviour_options(utils.create_ipu_config(), esr=False)
    )
    assert not is_stochastic_rounding_enabled()
    ipu_run_config.IPURunConfig(ipu_options=config.IPUConfig())
    assert is_stochastic_rounding_enabled()


def test_allow_recompute_recomputes_the_stages_of_a_pipeline() -> None:
    def spec(**options: Any) -> Any:
        stages: list[Callable[..., Any]] = [lambda x: x] * 2
        make = ipu_pipeline_estimator.IPUPipelineEstimatorSpec
        return make("train", stages, 4, optimizer_function=print, **options)

    assert not spec().recomputation
    utils.set_recomputation_options(utils.create_ipu_config()).configure_ipu_system()
    assert spec().recomputation
    assert not spec(recomputation=False).recomputation


def _operations_with(checkpoint: Callable[[Any], Any]) -> list[str]:
    """Returns the types of the operations of a recomputed function and its gradient."""
    with tensorflow.Graph().as_default() as graph:
        x = tensorflow.constant(3.0)
        function = training.recompute(lambda x: tensorflow.exp(checkpoint(tensorflow.exp(x))))
        (_,) = tensorflow.gradients(function(x), x)
        return [operation.type for operation in graph.get_operations()]


def test_a_recomputation_checkpoint_is_that_of_recompute() -> None:
    ours = _operations_with(lambda x: pipelining_ops.recomputation_checkpoint(x, name="kept"))
    assert ours == _operations_with(training.recomputation_checkpoint)
    assert ours != _operations_with(lambda x: x)


def _normalized(make: Callable[[Any], Any]) -> list[list[float]]:
    """Returns the batch [0, 2] or [10, 12] of each of two replicas, normalised."""
    strategy = LocalStrategy(num_replicas=2)
    with tensorflow.Graph().as_default(), strategy.scope():

        def replica() -> Any:
            first = 10.0 * strategy.extended.replica_in_worker()
            return make(tensorflow.constant([[first], [first + 2.0]]))

        results = strategy.experimental_local_results(strategy.run(replica))
        with v1.Session(config=strategy.update_config_proto(v1.ConfigProto())) as session:
            session.run(v1.global_variables_initializer())
            return [one[:, 0].tolist() for one in session.run(list(results))]


@pytest.mark.parametrize(
    "make",
    [
        lambda x: tf.keras.layers.BatchNormalization(-1, 0.9, epsilon=1e-9)(x, training=True),
        lambda x: tf.layers.batch_normalization(
            x, epsilon=1e-9, training=True, name="norm", reuse=v1.AUTO_REUSE
        ),
    ],
)
def test_batch_norms_have_the_statistics_of_a_group(make: Callable[[Any], Any]) -> None:
    np.testing.assert_allclose(_normalized(make), [[-1, 1], [-1, 1]], atol=1e-4)
    options = utils.set_norm_options(
        utils.create_ipu_config(), experimental_distributed_batch_norm_replica_group_size=2
    )
    options.configure_ipu_system()
    # Mean 6, variance 26.
    expected = (np.array([[0, 2], [10, 12]]) - 6) / np.sqrt(26)
    np.testing.assert_allclose(_normalized(make), expected, atol=1e-4)


def test_without_groups_the_batch_norms_are_the_stock_ones() -> None:
    assert tf.keras.layers.BatchNormalization is tf_keras.layers.BatchNormalization
    assert tf.layers.batch_normalization is v1.layers.batch_normalization
    options = config.IPUConfig()
    options.norms.experimental.distributed_batch_norm_replica_group_size = 2
    options.configure_ipu_system()
    assert isinstance(
        tf.keras.layers.BatchNormalization(), tf.keras.layers.BatchNormalization
    ) and issubclass(tf.keras.layers.BatchNormalization, training.BatchNormalization)
    assert tf.layers.dense is v1.layers.dense


# What is said.


def test_one_line_names_the_options_without_effect(logged: list[str]) -> None:
    options = config.IPUConfig()
    options.auto_select_ipus = 2
    assert options.num_ipus == 2
    options.floating_point_behaviour.nanoo = True
    options.norms.use_stable_statistics = True
    options.compilation_options = {"target.workerStackSizeInBytes": "4096"}
    options.convolutions.poplar_options["partialsType"] = "half"
    options.matmuls.poplar_options.update(partialsType="half")
    options.optimizations.math.fast = True
    options = copy.deepcopy(options)
    ipu_run_config.IPURunConfig(num_replicas=2, ipu_options=options)
    assert logged == [
        "IPUConfig: no effect without an IPU: compilation_options, convolutions.poplar_options, "
        "floating_point_behaviour.nanoo, matmuls.poplar_options.update, norms.use_stable_statistics"
        ", optimizations.math.fast."
    ]


def test_options_with_an_effect_are_not_named(logged: list[str]) -> None:
    options = config.IPUConfig()
    options.auto_select_ipus = 1
    options.floating_point_behaviour.esr = True
    options.norms.experimental.distributed_batch_norm_replica_group_size = 1
    options.configure_ipu_system()
    assert logged == []
