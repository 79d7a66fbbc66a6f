"""Updates of Keras' optimizers in one pass: the numbers are Keras' own."""

import importlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfdist.strategies import LocalStrategy

LIBRARIES = ["keras", "tf_keras"]
_STEPS = 20
# For each optimizer its arguments, and the ops by which it updates a large variable.
OPTIMIZERS: dict[str, tuple[str, dict[str, Any], set[str]]] = {
    "SGD": ("SGD", {}, {"ResourceApplyGradientDescent", "ResourceApplyKerasMomentum"}),
    "momentum": ("SGD", {"momentum": 0.9}, {"ResourceApplyKerasMomentum"}),
    "nesterov": ("SGD", {"momentum": 0.9, "nesterov": True}, {"ResourceApplyKerasMomentum"}),
    "Adam": ("Adam", {}, {"StatefulPartitionedCall"}),
    "AdamW": ("AdamW", {"weight_decay": 0.01}, {"StatefulPartitionedCall"}),
}


def _trained(library: str, name: str, strategy: Any) -> tuple[list[Any], set[str]]:
    """Returns a variable and the optimizer's after some steps, and the ops of a step."""
    optimizers = importlib.import_module(library).optimizers
    kind, options, _ = OPTIMIZERS[name]
    start = np.linspace(-1, 1, 60_000, dtype=np.float32).reshape(300, 200)
    with strategy.scope():
        variable = tf.Variable(start)
        optimizer = getattr(optimizers, kind)(0.01, **options)
        optimizer.build([variable])

    @tf.function  # type: ignore[untyped-decorator]
    def step(number: tf.Tensor) -> None:
        def update(number: tf.Tensor) -> None:
            gradient = 2.0 + tf.sin(number + variable)
            optimizer.apply_gradients([(gradient, variable)])

        strategy.run(update, args=(number,))

    for number in range(_STEPS):
        step(tf.constant(float(number)))
    ops = step.get_concrete_function(tf.constant(0.0)).graph.get_operations()
    variables = optimizer.variables() if callable(optimizer.variables) else optimizer.variables
    return [np.asarray(v) for v in (variable, *variables)], {op.type for op in ops}


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_variable_and_its_slots_end_as_in_plain_keras(library: str, name: str) -> None:
    expected, plain_ops = _trained(library, name, tf.distribute.get_strategy())
    found, ops = _trained(library, name, LocalStrategy(1))
    assert (ops - plain_ops) & OPTIMIZERS[name][2], ops
    for value, plain in zip(found, expected, strict=True):
        np.testing.assert_allclose(value, plain, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("library", LIBRARIES)
def test_another_class_of_optimizer_keeps_its_own_update(library: str) -> None:
    optimizers = importlib.import_module(library).optimizers

    class Doubled(optimizers.SGD):  # type: ignore[misc]
        def update_step(self, gradient: Any, variable: Any, *rate: Any) -> None:
            super().update_step(2 * gradient, variable, *rate)

    strategy = LocalStrategy(1)
    with strategy.scope():
        variable, optimizer = tf.Variable([1.0]), Doubled(0.5)
        optimizer.build([variable])
    strategy.run(lambda: optimizer.apply_gradients([(tf.constant([0.25]), variable)]))
    assert variable.numpy() == [0.75]
