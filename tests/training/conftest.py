"""Steps of an optimizer with given gradients, in a graph of its own."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.strategies import LocalStrategy


def _take(
    optimizer: Any,
    weights: Mapping[str, Any],
    steps: Sequence[Mapping[str, Any]],
    *,
    dtype: Any = np.float32,
    use_resource: bool = True,
) -> dict[str, Any]:
    with tf.Graph().as_default(), v1.Session() as session:
        global_step = v1.train.create_global_step()
        variables = {
            name: v1.get_variable(
                name,
                initializer=tf.constant(value, dtype),
                use_resource=use_resource,
            )
            for name, value in weights.items()
        }
        fed = {name: v1.placeholder(dtype, np.shape(value)) for name, value in weights.items()}
        pairs = [(fed[name], variable) for name, variable in variables.items()]
        update = optimizer.apply_gradients(pairs, global_step=global_step)
        session.run(v1.global_variables_initializer())
        for gradients in steps:
            session.run(update, {fed[name]: value for name, value in gradients.items()})
        values: dict[str, Any] = session.run({v.op.name: v for v in v1.global_variables()})
        return values


@pytest.fixture
def take() -> Callable[..., dict[str, Any]]:
    """Takes steps with an optimizer; returns the values of all variables by name."""
    return _take


@pytest.fixture
def take_on_replicas() -> Callable[..., tuple[list[Any], int]]:
    """Takes steps on two replicas, with gradients (3, 0) and (0, 4) of a weight of zeros.

    Returns the weight after each step, and the global step at the end.
    """

    def take_on_replicas(make: Callable[[], Any], steps: int = 1) -> tuple[list[Any], int]:
        strategy = LocalStrategy(num_replicas=2)
        with tf.Graph().as_default(), strategy.scope():
            weight = v1.get_variable("w", initializer=tf.zeros([2]))
            step, optimizer = v1.train.create_global_step(), make()

            def replica() -> Any:
                own = strategy.extended.replica_in_worker()
                gradient = tf.constant([[3.0, 0.0], [0.0, 4.0]][own])
                return optimizer.apply_gradients([(gradient, weight)], global_step=step)

            update, found = strategy.experimental_local_results(strategy.run(replica)), []
            with v1.Session(config=strategy.update_config_proto(v1.ConfigProto())) as session:
                session.run(v1.global_variables_initializer())
                for _ in range(steps):
                    session.run(update)
                    found.append(session.run(weight))
                return found, int(session.run(step))

    return take_on_replicas


@pytest.fixture
def weights() -> dict[str, Any]:
    """Weights of which two have one shape, and one is 0."""
    random = np.random.default_rng(0)
    return {
        "kernel": random.normal(size=(5, 4)),
        "bias": random.normal(size=4),
        "zeros": np.zeros(3),
        "norm/scale": random.normal(size=4),
    }


@pytest.fixture
def gradients(weights: dict[str, Any]) -> list[dict[str, Any]]:
    """Gradients of ten steps; those of one weight are 0 throughout."""
    random = np.random.default_rng(1)
    return [
        {
            name: random.normal(size=np.shape(value)) * (name != "bias")
            for name, value in weights.items()
        }
        for _ in range(10)
    ]
