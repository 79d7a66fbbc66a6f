"""Divided tables in Keras: look-ups of Keras 3, the optimizers that can update rows, and clipping.

tf_keras looks rows up by `tf.nn.embedding_lookup`. Keras 3 calls `take` of its backend, which asks
for the table's shape and so reads all of it.

Private names: of both libraries `Optimizer._clip_gradients`; of Keras 3 the module of `take`.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import tensorflow as tf

from tfdist.strategies.divided.variable import DividedTableError
from tfdist.strategies.keras.extension import extends, is_of_keras, strategy_of_scope
from tfdist.strategies.placement import HOST
from tfdist.strategies.reductions.division import division_of
from tfdist.strategies.reductions.row_exchange import is_of_divided_table

# The optimizers whose rule for a row needs this row of weights, gradient and slots alone.
_BY_ROWS = (
    *("SGD", "Adam", "AdamW", "Adagrad", "Adadelta", "Adamax", "Nadam", "RMSprop", "Ftrl"),
    "Lion",
)


def adapt_tables(library: ModuleType, *, is_keras_3: bool) -> None:
    """Extends a library's look-ups and its clipping of gradients."""
    if is_keras_3:
        _adapt_take(importlib.import_module("keras.src.backend.tensorflow.numpy"))
        _adapt_clipping(library.optimizers.Optimizer)
    else:
        _adapt_clipping(library.optimizers.Optimizer)
        _refuse_legacy(library.optimizers.legacy.Optimizer)


def check_optimizer(optimizer: Any, variables: Sequence[tf.Variable]) -> None:
    """Refuses an optimizer that cannot update some rows of a table by themselves.

    Raises:
      DividedTableError: If it is none of Keras', or one whose rule combines rows.
    """
    divided = next((v for v in map(division_of, variables) if v is not None), None)
    if divided is None:
        return
    for kind in type(optimizer).__mro__:
        if "update_step" in vars(kind):
            if kind.__name__ in _BY_ROWS and is_of_keras(kind):
                return
            break
    raise DividedTableError(
        f"{type(optimizer).__name__} cannot update {divided.name}, which is divided between "
        f"{divided.num_workers} workers: its rule is not known to need a row's own numbers alone. "
        f"Use one of Keras' {', '.join(_BY_ROWS)}, or let variable_partitioner leave it whole."
    )


def _refuse_legacy(optimizer: Any) -> None:
    @extends(optimizer, "apply_gradients")
    def apply_to_whole(apply: Any, self: Any, grads_and_vars: Any, *args: Any, **kw: Any) -> Any:
        pairs = list(grads_and_vars)
        check_optimizer(self, [v for _, v in pairs])
        return apply(self, pairs, *args, **kw)


def _adapt_take(module: Any) -> None:
    @extends(module, "take")
    def take_from_owners(take: Any, x: Any, indices: Any, axis: int | None = None) -> Any:
        division = division_of(x)
        if division is None:
            return take(x, indices, axis)
        if axis not in (0, -len(division.shape)):
            raise DividedTableError(
                f"{division.name} is divided between {division.num_workers} workers by its rows, "
                f"and ops.take asks for axis {axis}. Look rows up with axis=0."
            )
        table = x if isinstance(x, tf.Variable) else x.value

        def counted(ids: tf.Tensor) -> tf.Tensor:  # Below 0 from the end, as Keras has it.
            return tf.where(ids < 0, ids + tf.cast(division.num_rows, ids.dtype), ids)

        if isinstance(indices, tf.SparseTensor):
            indices = indices.with_values(counted(indices.values))
            rows = tf.nn.safe_embedding_lookup_sparse(
                table, tf.sparse.expand_dims(indices, axis=-1), default_id=0
            )
            rows.set_shape(indices.shape + rows.shape[len(indices.shape) :])
            return rows
        if isinstance(indices, tf.RaggedTensor):
            return tf.nn.embedding_lookup(
                table, indices.with_flat_values(counted(indices.flat_values))
            )
        return tf.gather(table, counted(tf.convert_to_tensor(indices)))


def _adapt_clipping(optimizer: Any) -> None:
    """Makes norms of gradients count the rows of all workers."""

    @extends(optimizer, "_clip_gradients")
    def clip_all(clip: Any, self: Any, grads: Any) -> Any:
        grads = list(grads)
        is_divided = [is_of_divided_table(g) for g in grads]
        by_norm, by_global_norm = self.clipnorm, self.global_clipnorm
        if not any(is_divided) or not (by_norm or by_global_norm):
            return clip(self, grads)
        strategy = strategy_of_scope()
        divided = [g for g, found in zip(grads, is_divided, strict=True) if found]
        with tf.device(HOST):
            own = tf.stack([tf.reduce_sum(tf.square(g.values)) for g in divided])
            (squares,) = strategy.extended.collectives.sum([own], "squares_of_rows")  # [divided]
        rest = [
            g for g, found in zip(grads, is_divided, strict=True) if not found and g is not None
        ]
        if by_norm:
            norms = iter(tf.unstack(tf.sqrt(squares), len(divided)))
            clipped = iter(clip(self, rest))
            return [
                None
                if g is None
                else _scaled(g, by_norm / tf.maximum(next(norms), by_norm))
                if found
                else next(clipped)
                for g, found in zip(grads, is_divided, strict=True)
            ]
        squares_of_rest = [tf.square(tf.linalg.global_norm(rest))] if rest else []
        norm = tf.sqrt(tf.add_n([tf.reduce_sum(squares), *squares_of_rest]))
        factor = by_global_norm / tf.maximum(norm, by_global_norm)
        return [None if g is None else _scaled(g, factor) for g in grads]


def _scaled(gradient: Any, factor: tf.Tensor) -> Any:
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient * tf.cast(factor, gradient.dtype)
    values = gradient.values * tf.cast(factor, gradient.values.dtype)
    return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
