"""Updates of Keras' SGD, Adam and AdamW in one pass over a variable, its gradient and its slots.

Keras composes an update of up to twelve operations, each of which reads and writes whole tensors.
The formulas here are Keras' own, so numbers differ by rounding alone. On one core, for 8.2 million
float32 numbers:

    SGD of Keras 3 / of tf_keras     8.2 / 11.1 ms      TensorFlow's operations    3.0 / 4.8 ms
    Adam                             28 to 32 ms        compiled by XLA            9.0 ms

TensorFlow's operation for Adam rounds 1 - beta_2 to another number than Keras does.

What Keras does with another class, sparse gradients, `amsgrad`, or a variable of a GPU stays as it
is. Private names: of Keras 3 `Optimizer._get_variable_index`; of tf_keras `Optimizer._index_dict`
and `_var_key`; of both `_momentums` and `_velocities`, and of tf_keras' Adam `adaptive_epsilon`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import tensorflow as tf

from tfdist.strategies.eager.replica_variable import tf_variable
from tfdist.strategies.keras.extension import extends, strategy_of_scope
from tfdist.strategies.private_tensorflow import ResourceVariable
from tfdist.strategies.values.replica_context import (
    are_updates_equal,
    is_in_replica,
    replica_in_worker,
)

# From this size on a pass costs more than a call of what XLA has compiled: 0.2 MB.
_COMPILED_ELEMENTS = 50_000


def fuse_updates(library: ModuleType, *, is_keras_3: bool) -> None:
    """Makes the optimizers of a library update a variable in one pass under a strategy."""
    optimizers = library.optimizers
    _fuse(optimizers.SGD, [optimizers.SGD], _update_sgd, is_keras_3)
    adams = [optimizers.Adam, optimizers.AdamW]
    for kind in adams:
        if "update_step" in vars(kind):  # Keras 3's AdamW has that of Adam.
            _fuse(kind, adams, _update_adam, is_keras_3)


def _fuse(kind: Any, kinds: Sequence[type], fused: Callable[..., bool], is_keras_3: bool) -> None:

    @extends(kind, "update_step")
    def update_at_once(update: Any, self: Any, gradient: Any, variable: Any, *rate: Any) -> None:
        if type(self) in kinds and _may_fuse(gradient, variable):
            if is_keras_3:
                place = self._get_variable_index(variable)
            else:
                place = self._index_dict[self._var_key(variable)]
            with tf.device(variable.device):
                given = tf.cast(gradient, variable.dtype)
                learning_rate = tf.cast(*(rate or (self.learning_rate,)), variable.dtype)
                if fused(self, place, given, variable, learning_rate):
                    return
        update(self, gradient, variable, *rate)


def _may_fuse(gradient: Any, variable: Any) -> bool:
    """Returns whether this is the one update of a variable by a dense gradient, on a CPU."""
    return (
        strategy_of_scope() is not None
        and isinstance(gradient, tf.Tensor)
        and isinstance(variable, ResourceVariable)
        and tf.DeviceSpec.from_string(variable.device).device_type == "CPU"
        and (are_updates_equal() or not is_in_replica())
        and replica_in_worker() == 0
    )


def _update_sgd(
    optimizer: Any, place: int, gradient: tf.Tensor, variable: tf.Variable, rate: tf.Tensor
) -> bool:
    """Updates a variable as SGD; returns whether it could."""
    if not optimizer.momentums:
        tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=rate, delta=gradient)
    else:
        tf.raw_ops.ResourceApplyKerasMomentum(
            var=variable.handle,
            accum=tf_variable(optimizer.momentums[place]).handle,
            lr=rate,
            grad=gradient,
            momentum=tf.cast(optimizer.momentum, variable.dtype),
            use_nesterov=optimizer.nesterov,
        )
    return True


def _update_adam(
    optimizer: Any, place: int, gradient: tf.Tensor, variable: tf.Variable, rate: tf.Tensor
) -> bool:
    """Updates a variable as Adam, or AdamW after its decay; returns whether it could."""
    is_small = (variable.shape.num_elements() or 0) < _COMPILED_ELEMENTS
    if is_small or optimizer.amsgrad or getattr(optimizer, "adaptive_epsilon", False):
        return False
    step = tf.cast(optimizer.iterations + 1, variable.dtype)  # []
    first, second = (
        tf.pow(tf.cast(beta, variable.dtype), step) for beta in (optimizer.beta_1, optimizer.beta_2)
    )
    _compiled_adam(
        variable,
        tf_variable(optimizer._momentums[place]),  # noqa: SLF001
        tf_variable(optimizer._velocities[place]),  # noqa: SLF001
        gradient,
        rate * tf.sqrt(1 - second) / (1 - first),
        optimizer.beta_1,
        optimizer.beta_2,
        optimizer.epsilon,
    )
    return True


@tf.function(jit_compile=True)  # type: ignore[untyped-decorator]
def _compiled_adam(
    variable: Any,
    momentum: Any,
    velocity: Any,
    gradient: tf.Tensor,
    alpha: tf.Tensor,
    beta_1: float,
    beta_2: float,
    epsilon: float,
) -> None:
    """Updates a variable of any shape and its slots; XLA compiles it once for each shape."""
    momentum.assign_add((gradient - momentum) * (1 - beta_1))
    velocity.assign_add((tf.square(gradient) - velocity) * (1 - beta_2))
    variable.assign_sub(momentum * alpha / (tf.sqrt(velocity) + epsilon))
