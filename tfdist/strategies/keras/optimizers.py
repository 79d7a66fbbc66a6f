"""Optimizers of Keras under a strategy: gradients are reduced first, over all replicas.

Keras 3 clips gradients, accumulates them and looks for NaN before it reduces them: N workers would
not be one, and one worker could skip a step that the others make. Outside a replica's code
gradients are reduced already: both libraries apply them as they are.

Private names: of Keras 3 `Optimizer._all_reduce_sum_gradients` and `_trainable_variables`; of
tf_keras `strategy_supports_loss_scaling`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from types import ModuleType
from typing import Any

import tensorflow as tf

from tfdist.strategies.base import is_tfdist_strategy
from tfdist.strategies.eager.replica_variable import tf_variable
from tfdist.strategies.eager.step import NOW
from tfdist.strategies.extended import name_of
from tfdist.strategies.keras.extension import extends
from tfdist.strategies.values.replica_context import are_updates_equal, equal_updates


def adapt_optimizers(library: ModuleType, *, is_keras_3: bool) -> None:
    """Makes the optimizers of a library reduce gradients first."""
    if is_keras_3:
        _adapt_keras_3(library.optimizers)
    else:
        _adapt_tf_keras(library.optimizers.Optimizer)
        name = f"{library.__name__}.src.mixed_precision.loss_scale_optimizer"
        _allow_loss_scales(importlib.import_module(name))


def _adapt_keras_3(optimizers: Any) -> None:
    @extends(optimizers.Optimizer, "apply")
    @extends(optimizers.LossScaleOptimizer, "apply")
    def apply_reduced(apply: Any, self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        context, strategy = tf.distribute.get_replica_context(), tf.distribute.get_strategy()
        is_ours = is_tfdist_strategy(strategy)
        if is_ours and context is None:
            with _as_one_replica(strategy):
                return apply(self, grads, trainable_variables)
        if not is_ours or are_updates_equal() or context.num_replicas_in_sync == 1:
            return apply(self, grads, trainable_variables)
        targets = map(tf_variable, trainable_variables or self._trainable_variables)

        def update(strategy: Any, reduced: Sequence[Any]) -> None:
            with _as_one_replica(strategy):
                apply(self, reduced, trainable_variables)

        return _with_sums(context, list(zip(grads, targets, strict=True)), update)

    @extends(optimizers.Optimizer, "_all_reduce_sum_gradients")
    def reduce_once(reduce: Any, self: Any, grads_and_vars: Any) -> Any:
        return list(grads_and_vars) if are_updates_equal() else reduce(self, grads_and_vars)


def _adapt_tf_keras(optimizer: Any) -> None:
    @extends(optimizer, "apply_gradients")
    def apply_equal(apply: Any, *args: Any, **kwargs: Any) -> Any:
        strategy = tf.distribute.get_strategy()
        is_ours = is_tfdist_strategy(strategy)
        if is_ours and tf.distribute.in_cross_replica_context():
            with _as_one_replica(strategy):
                return apply(*args, **{**kwargs, "skip_gradients_aggregation": True})
        # A constraint assigns weights, which replicas may do if their updates are equal.
        is_one = is_ours and strategy.extended.placement.num_replicas == 1
        with equal_updates() if is_one else nullcontext():
            return apply(*args, **kwargs)

    @extends(optimizer, "aggregate_gradients")
    def aggregate_here(aggregate: Any, self: Any, grads_and_vars: Any) -> Any:
        context, strategy = tf.distribute.get_replica_context(), tf.distribute.get_strategy()
        if context is None or not is_tfdist_strategy(strategy):
            return aggregate(self, grads_and_vars)
        pairs = list(grads_and_vars)
        sums = _with_sums(context, pairs, lambda _, sums: sums)
        return [(g, v) for g, (_, v) in zip(sums, pairs, strict=True)]


def _allow_loss_scales(module: Any) -> None:
    """Makes tf_keras' LossScaleOptimizer accept the strategies of tfdist beside TensorFlow's."""

    @extends(module, "strategy_supports_loss_scaling")
    def is_supported_here(is_supported: Any) -> bool:
        return is_supported() or is_tfdist_strategy(tf.distribute.get_strategy())


def _with_sums(
    context: Any, pairs: Sequence[tuple[Any, Any]], function: Callable[[Any, list[Any]], Any]
) -> Any:
    """Calls a function with the strategy and the gradients, added over all replicas.

    It is called once for all replicas of this worker; what it returns is returned. Rows of slices
    stay apart, as in one process: Keras adds rows of equal index where its rule demands it, and
    `SharedVariable` where it adds them to the weights.
    """
    targets = [v for g, v in pairs if g is not None]

    def merge(strategy: Any, values: Any) -> Any:
        sums = iter(_sums(strategy.extended, values, targets))
        return function(strategy, [None if g is None else next(sums) for g, _ in pairs])

    return context.merge_call(merge, args=([g for g, _ in pairs if g is not None],))


def _sums(extended: Any, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
    """Adds gradients over all replicas; slices are concatenated, equal rows are not added.

    The message of a step of `fit` travels with them.
    """
    values, names = [extended.parts_of(g) for g in gradients], [name_of(v) for v in variables]
    step = NOW.step
    message = None if step is None else step.take_message()
    if message is not None:  # First, so that it shares the bucket that is sent last.
        values, names = [[message], *values], ["message_of_the_step", *names]
    sums: list[Any] = extended.reducer.reduce_gradients(
        values, names, mean=False, adds_equal_rows=False
    )
    if message is not None and step is not None and step.results is not None:
        step.results.receive(sums.pop(0))
    return sums


@contextmanager
def _as_one_replica(strategy: Any) -> Iterator[None]:
    """Makes the `with` block update as one replica would, so once for all of this worker."""
    first = strategy.extended.first_replica_in_sync
    with tf.distribute.ReplicaContext(strategy, replica_id_in_sync_group=first), equal_updates():
        yield
