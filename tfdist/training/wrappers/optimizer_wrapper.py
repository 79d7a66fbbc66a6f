"""Optimizers that wrap an optimizer: reduce first, then decide, then let it update.

    replicas of all workers          host of each worker
    -----------------------          -------------------------------------------------
    gradients, not reduced  ------>  summed over replicas and workers   (always, a collective)
                                     decide: clip, skip, ...            (bit-equal on all workers)
                                     the wrapped optimizer updates      (it reduces nothing)

What is decided from the whole batch's gradient is decided alike on every worker, because the
reduced gradient is bit-equal there. The reduction is never part of a condition: a worker that took
another branch would leave the others waiting.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.strategies.divided.variable import refuse_divided
from tfdist.strategies.placement import HOST
from tfdist.strategies.values.replica_context import reduced_gradients
from tfdist.training.half_precision import in_float32, refuse_stock_on_halves

Pairs = Sequence[tuple[Any, Any]]

# The wrappers of this package from the outermost to the innermost.
WRAPPER_ORDER = (
    "GradientAccumulationOptimizer",
    "LossScaleOptimizer",
    "ClippedOptimizer",
    "DistributedOptimizer",
)

# The argument of `apply_gradients` that says that gradients are reduced already, and its value:
# that of v1 and newer tf_keras optimizers, and that of the legacy ones of tf_keras.
_REDUCED = {"skip_gradients_aggregation": True, "experimental_aggregate_gradients": False}


class OptimizerWrapper(v1.train.Optimizer):  # type: ignore[misc]
    """Base class of optimizers that change the reduced gradient for a wrapped optimizer.

    A subclass overrides `_update`. It is called once per worker with gradients that are reduced
    over all replicas and workers, and calls `apply_reduced` at most once. The wrapped optimizer is
    one of v1 or tf_keras, or another object with `apply_gradients`.

    Raises:
      TypeError: If `optimizer` has no `apply_gradients`.
      ValueError: If a wrapper is used twice, or wrappers are in a wrong order.
    """

    def __init__(self, optimizer: Any) -> None:
        kind = type(self).__name__
        if not callable(getattr(optimizer, "apply_gradients", None)):
            raise TypeError(
                f"{kind} needs an optimizer of tf.compat.v1.train or tf_keras, got {optimizer!r}. "
                f"Write {kind}(LAMB(0.001)), for example."
            )
        super().__init__(use_locking=False, name=kind)
        self.optimizer = optimizer
        _check_order(wrapper_names(self))
        if isinstance(optimizer, v1.train.Optimizer):
            self._track_trackable(optimizer, "optimizer")

    def compute_gradients(self, loss: Any, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Computes gradients as the wrapped optimizer does; the arguments are v1 optimizers'."""
        inner = self.optimizer
        loss = self.loss_to_differentiate(loss)
        if isinstance(inner, v1.train.Optimizer):
            return list(inner.compute_gradients(loss, *args, **kwargs))
        return list(super().compute_gradients(loss, *args, **kwargs))

    def loss_to_differentiate(self, loss: Any) -> Any:
        """Returns the scalar that this wrapper differentiates in place of the loss."""
        return loss

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, Any]],
        global_step: Any = None,
        name: str | None = None,
        skip_gradients_aggregation: bool = False,
    ) -> Any:
        """Reduces the gradients, decides, and lets the wrapped optimizer update the variables.

        Gradients in half precision become float32 before anything is added. A collective: every
        worker and every replica must call it, with the same variables.

        Args:
          grads_and_vars: Pairs of gradient and variable; a gradient of None is left out.
          global_step: A variable to increment after the update.
          name: A name for the update's ops.
          skip_gradients_aggregation: Whether the gradients are reduced already.

        Returns:
          The op of the update.

        Raises:
          ValueError: If no variable has a gradient.
        """
        pairs = [
            (in_float32(gradient), variable)
            for gradient, variable in grads_and_vars
            if gradient is not None
        ]
        refuse_divided(type(self).__name__, [variable for _, variable in pairs])
        if not pairs:
            raise ValueError(
                f"{self.get_name()} got no gradient. Give apply_gradients pairs of gradient and "
                "variable in which the loss depends on the variables."
            )

        def update(reduced: Pairs) -> Any:
            # No name scope: variables that the wrapped optimizer makes keep their names.
            op = self._update_and_count(reduced, global_step)
            return op if name is None else tf.group(op, name=name)

        return update(pairs) if skip_gradients_aggregation else reduce_then(update, pairs)

    def _update_and_count(self, reduced: Pairs, global_step: Any) -> Any:
        """Returns the op of `_update`, and then increments the global step, if there is one."""
        op = self._update(reduced)
        return op if global_step is None else increment(global_step, after=op)

    def _update(self, reduced: Pairs) -> Any:
        """Returns the op that updates the variables with the reduced gradients, on the host."""
        raise NotImplementedError

    def apply_reduced(self, reduced: Pairs) -> Any:
        """Returns the op with which the wrapped optimizer applies reduced gradients.

        Raises:
          ValueError: If the wrapped optimizer reduces them a second time, or cannot update weights
            in half precision.
        """
        refuse_stock_on_halves(self.optimizer, [variable for _, variable in reduced])
        apply = self.optimizer.apply_gradients
        known = inspect.signature(apply).parameters
        given = {key: _REDUCED[key] for key in _REDUCED if key in known}
        count = _num_reductions()
        op = if_counted(lambda: apply(reduced, **given))
        if _num_reductions() > count:
            raise ValueError(
                f"{type(self).__name__} has reduced the gradients, and "
                f"{type(self.optimizer).__name__} reduces them again, since its apply_gradients "
                "takes no skip_gradients_aggregation. Let it pass that argument on."
            )
        return op

    def get_slot(self, var: Any, name: str) -> Any:
        return self.optimizer.get_slot(var, name)

    def get_slot_names(self) -> list[str]:
        return list(self.optimizer.get_slot_names())

    def variables(self) -> list[Any]:
        own = self.optimizer.variables  # A method in v1 and legacy, otherwise a property.
        return list(own() if callable(own) else own)


def reduce_then(update: Callable[[Pairs], Any], pairs: Pairs) -> Any:
    """Sums gradients over all replicas and workers, and calls a function once per worker.

    The convention is v1 optimizers': `compute_gradients` has divided the loss by the number
    of replicas, so that the sum of the gradients is the gradient of the mean loss. Without a
    strategy the gradients are handed on as they are. `update` is called on the host with the
    reduced pairs, and returns an op.

    A collective: every replica must call it.
    """
    if not tf.distribute.has_strategy():
        return update(pairs)

    def merge(strategy: Any, *flat: Any) -> Any:
        gradients, variables = flat[: len(pairs)], flat[len(pairs) :]
        reduced = strategy.extended.batch_reduce_to(
            tf.distribute.ReduceOp.SUM, list(zip(gradients, variables, strict=True))
        )
        # One call stands for all replicas. Optimizers of tf_keras run in a replica only.
        with (
            v1.distribute.ReplicaContext(strategy, replica_id_in_sync_group=0),
            reduced_gradients(),
            tf.device(HOST),
        ):
            return update(list(zip(reduced, variables, strict=True)))

    context = tf.distribute.get_replica_context()
    gradients, variables = zip(*pairs, strict=True)
    return context.merge_call(merge, args=(*gradients, *variables))


def has_own_gradients(optimizer: Any) -> bool:
    """Returns whether a v1 optimizer, also a wrapped one, has its own `compute_gradients`."""
    while (
        isinstance(optimizer, OptimizerWrapper)
        and type(optimizer).compute_gradients is OptimizerWrapper.compute_gradients
    ):
        optimizer = optimizer.optimizer
    return (
        isinstance(optimizer, v1.train.Optimizer)
        and type(optimizer).compute_gradients is not v1.train.Optimizer.compute_gradients
    )


def loss_to_differentiate(optimizer: Any, loss: tf.Tensor) -> tf.Tensor:
    """Returns the scalar that an optimizer differentiates in place of the loss."""
    while isinstance(optimizer, OptimizerWrapper):
        loss, optimizer = optimizer.loss_to_differentiate(loss), optimizer.optimizer
    return loss


def wrapper_names(optimizer: Any) -> list[str]:
    """Returns the class names of the wrappers around an optimizer, the outermost first.

    A subclass of a wrapper of this package has that one's name.
    """
    names = []
    while isinstance(optimizer, OptimizerWrapper):
        kinds = [kind.__name__ for kind in type(optimizer).__mro__]
        names.append(next((name for name in kinds if name in WRAPPER_ORDER), kinds[0]))
        optimizer = optimizer.optimizer
    return names


def _check_order(names: Sequence[str]) -> None:
    known = [name for name in names if name in WRAPPER_ORDER]
    twice = [name for name in known if known.count(name) > 1]
    right = [name for name in WRAPPER_ORDER if name in known]
    written = f"{'('.join(right)}(optimizer{')' * len(right)}"
    if twice:
        raise ValueError(f"{twice[0]} is used twice: {' around '.join(known)}. Write {written}.")
    if known != right:
        raise ValueError(
            f"wrappers of optimizers are in a wrong order: {' around '.join(known)}. Write "
            f"{written}."
        )


def increment(global_step: Any, after: Any) -> Any:
    """Returns the op that adds one to a variable once another op has run."""
    with tf.control_dependencies([after]):
        return v1.assign_add(global_step, 1).op


def if_counted(update: Callable[[], Any]) -> Any:
    """Returns what `update` returns; its ops do not run in a step with loss weights of 0 only."""
    reducer = getattr(tf.distribute.get_strategy().extended, "reducer", None)
    decide = getattr(reducer, "if_counted", None)
    return update() if decide is None else decide(update)


def _num_reductions() -> int:
    """Returns how many reductions over workers the current strategy has built so far."""
    reducer = getattr(tf.distribute.get_strategy().extended, "reducer", None)
    return 0 if reducer is None else len(reducer.built.described)
