"""Optimizers of Keras under a strategy: gradients are reduced first, over all replicas.

Keras 3 clips gradients, accumulates them and looks for NaN before it reduces them: N workers would
not be one, and one worker could skip a step that the others make. Outside a replica's code
gradients are reduced already: both libraries apply them as they are.

Private names: of Keras 3 `Optimizer._all_reduce_sum_gradients` and `_trainable_variables`; of
tf_keras `strategy_supports_loss_scaling`, and `_apply_gradients` of a LossScaleOptimizer.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from types import ModuleType
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.process.endings import OneLineError
from tfdist.strategies.base import is_tfdist_strategy
from tfdist.strategies.dialect import is_tensorflow_2
from tfdist.strategies.eager.replica_variable import tf_variable
from tfdist.strategies.eager.step import NOW, unless_empty
from tfdist.strategies.extended import name_of
from tfdist.strategies.keras.extension import extends
from tfdist.strategies.keras.tables import check_optimizer
from tfdist.strategies.reductions.division import division_of
from tfdist.strategies.values.replica_context import (
    are_gradients_reduced,
    are_updates_equal,
    equal_updates,
    is_in_replica,
    reduced_gradients,
)

# Operations that leave the gradient of a kernel unset for a batch without rows.
_UNSET_WITHOUT_ROWS = ("DepthwiseConv2dNativeBackpropFilter",)
_SAME_NUMBERS = ("Reshape", "Squeeze", "ExpandDims", "Identity", "Cast")
_REDUCES = "experimental_aggregate_gradients"


def adapt_optimizers(library: ModuleType, *, is_keras_3: bool) -> None:
    """Makes the optimizers of a library reduce gradients first."""
    if is_keras_3:
        _adapt_keras_3(library.optimizers)
    else:
        name = f"{library.__name__}.src.mixed_precision.loss_scale_optimizer"
        loss_scales = importlib.import_module(name)
        _adapt_tf_keras(library.optimizers.Optimizer)
        _warn_of_nadam(library.optimizers.Nadam)
        _allow_loss_scales(loss_scales)
        for scaled in (loss_scales.LossScaleOptimizer, loss_scales.LossScaleOptimizerV3):
            _refuse_unreduced(scaled)
            _mark_as_reduced(scaled)
        for optimizer in (library.optimizers.Optimizer, library.optimizers.legacy.Optimizer):
            _refuse_unreduced(optimizer)


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
        targets = [*map(tf_variable, trainable_variables or self._trainable_variables)]
        check_optimizer(self, targets)

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
        check_optimizer(self, [v for _, v in pairs])
        sums = _with_sums(context, pairs, lambda _, sums: sums)
        return [(g, v) for g, (_, v) in zip(sums, pairs, strict=True)]


def _warn_of_nadam(nadam: Any) -> None:
    """Makes tf_keras' Nadam say that no number of replicas gives the numbers of another."""

    @extends(nadam, "build")
    def build_and_warn(build: Any, self: Any, var_list: Any) -> None:
        strategy = tf.distribute.get_strategy()
        is_new = not getattr(self, "_built", False)
        build(self, var_list)
        if is_new and is_tfdist_strategy(strategy) and strategy.num_replicas_in_sync > 1:
            v1.logging.warning(
                "Nadam of tf_keras counts how often a function is traced where its rule counts "
                "steps: %d replicas may end with other weights than one. Use Adam, or Keras 3's "
                "Nadam.",
                strategy.num_replicas_in_sync,
            )


class UnreducedGradientsError(OneLineError, ValueError):
    """An optimizer is to apply the gradients of single replicas to variables that all share."""


def _refuse_unreduced(optimizer: Any) -> None:
    """Makes an optimizer of tf_keras refuse gradients in a replica's code that it may not reduce.

    Whether they are reduced cannot be seen. One worker would apply its first replica's.
    """

    @extends(optimizer, "apply_gradients")
    def apply_if_reduced(apply: Any, *args: Any, **kwargs: Any) -> Any:
        given = inspect.signature(apply).bind(*args, **kwargs).arguments
        given |= given.pop("kwargs", {})
        if given.get("skip_gradients_aggregation") or not given.get(_REDUCES, True):
            strategy = tf.distribute.get_strategy()
            is_of_many = is_in_replica() and strategy.num_replicas_in_sync > 1
            is_known = are_updates_equal() or are_gradients_reduced()
            if is_of_many and not is_known and is_tensorflow_2() and is_tfdist_strategy(strategy):
                raise UnreducedGradientsError(
                    f"{type(given['self']).__name__}.apply_gradients is told not to reduce the "
                    f"gradients (skip_gradients_aggregation=True, or {_REDUCES}=False) in the code "
                    f"of {strategy.num_replicas_in_sync} replicas. Leave it out, and give it each "
                    "replica's own gradients; or call it in merge_call with reduced ones."
                )
        return apply(*args, **kwargs)


def _mark_as_reduced(loss_scale_optimizer: Any) -> None:
    """Marks the gradients that a LossScaleOptimizer has reduced, and gives its inner optimizer."""

    @extends(loss_scale_optimizer, "_apply_gradients")
    def apply_marked(apply: Any, *args: Any, **kwargs: Any) -> Any:
        with reduced_gradients():
            return apply(*args, **kwargs)


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
    pairs = [(_of_rows(g), v) for g, v in pairs]
    targets = [v for g, v in pairs if g is not None]

    def merge(strategy: Any, values: Any) -> Any:
        sums = iter(_sums(strategy, values, targets))
        return function(strategy, [None if g is None else next(sums) for g, _ in pairs])

    return context.merge_call(merge, args=([g for g, _ in pairs if g is not None],))


def _of_rows(gradient: Any) -> Any:
    """Returns a gradient; zeros where a replica has no row and TensorFlow leaves it unset."""
    if not tf.is_symbolic_tensor(gradient):
        return gradient
    op = gradient.op
    while op.type in _SAME_NUMBERS:
        op = op.inputs[0].op
    return unless_empty(gradient) if op.type in _UNSET_WITHOUT_ROWS else gradient


def _sums(strategy: Any, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
    """Adds gradients over all replicas; slices are concatenated, equal rows are not added.

    The message of a step of `fit` travels with them.
    """
    extended = strategy.extended
    values, names = [extended.parts_of(g) for g in gradients], [name_of(v) for v in variables]
    dense = [
        v
        for v, (g, *_) in zip(variables, values, strict=True)
        if not isinstance(g, tf.IndexedSlices)
    ]
    extended.tables.note_gradients()
    strategy.note_step(sum(v.dtype.size * (v.shape.num_elements() or 0) for v in dense))
    step = NOW.step
    message = None if step is None else step.take_message()
    if message is not None:  # First, so that it shares the bucket that is sent last.
        values, names = [[message], *values], ["message_of_the_step", *names]
    divisions = [division_of(v) for v in variables]
    if message is not None:
        divisions = [None, *divisions]
    sums: list[Any] = extended.reducer.reduce_gradients(
        values, names, mean=False, adds_equal_rows=False, divisions=divisions
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
