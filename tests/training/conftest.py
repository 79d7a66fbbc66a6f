"""Steps of an optimizer with given gradients, in a graph of its own."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1


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
