"""Weights of replicas: reductions of gradients in which some replicas count more than others.

A loss that is a mean over w items (masked tokens, say) counts by w. With the weights w_r of all R
replicas, a gradient g_r of each, and the convention that a sum of gradients is the gradient of the
mean loss (each g_r has been divided by R):

    replica           host of its worker        wire        host
    g_r  ---------->  w_r g_r  -------------->  sum  ---->  R sum(w_r g_r) / sum(w_r)
    w_r  ---------->  w_r      -------------->  sum  ----'

The sum of the weights is needed only behind the reduction. So no gradient waits for it, and it
shares a message with other small sums. Where it is 0, no variable is updated: every worker knows it
and decides alike, and no reduction is part of the condition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.strategies.placement import HOST
from tfdist.strategies.reductions.early_reduction import without_gates
from tfdist.strategies.reductions.slices import Value, on_values, weighted


class ReplicaWeights:
    """The weights of all replicas in a step.

    Args:
      own: float32 scalars, one per replica of this worker.
      total: float32 scalar, the sum of the weights of all replicas of all workers.
      num_replicas: The number of all replicas.
    """

    def __init__(self, own: Sequence[tf.Tensor], total: tf.Tensor, num_replicas: int) -> None:
        self.num_weighted = 0
        self._own = own
        with tf.device(HOST):
            self._is_any = total > 0  # bool []
            # In float64 for gradients in float64; [].
            count = tf.constant(num_replicas, tf.float64)
            self._scale = tf.math.divide_no_nan(count, tf.cast(total, tf.float64))

    def reduce(
        self,
        values: Sequence[Sequence[Value]],
        all_reduce: Callable[[Sequence[Sequence[Value]]], list[Value]],
    ) -> list[Value]:
        """Reduces values so that each replica counts by its weight.

        Args:
          values: For each value, one tensor per replica of this worker, or one that stands for all.
          all_reduce: Reduces such values.
        """
        self.num_weighted += len(values)
        gates: list[list[tf.Operation]] = [[] for _ in values]
        weighted: list[list[Value]] = []
        with tf.device(HOST), tf.name_scope("weighted"):
            for parts, waits_for in zip(values, gates, strict=True):
                weighted.append(self._weighted(parts, waits_for))
        reduced = all_reduce(weighted)
        with tf.device(HOST), tf.name_scope("weighted"):
            return [
                self._scaled(value, parts[0].dtype, waits_for)
                for value, parts, waits_for in zip(reduced, values, gates, strict=True)
            ]

    def if_any(self, update: Callable[[], Any]) -> Any:
        """Returns what `update` returns, or an op for it: its ops run unless all weights are 0."""
        return tf.cond(self._is_any, lambda: tf.group(update()), tf.no_op)

    def _weighted(self, parts: Sequence[Value], gates: list[tf.Operation]) -> list[Value]:
        own = self._own
        if len(parts) < len(own):  # One value that all replicas share.
            own = [tf.add_n(own) / float(len(own))]
        return [_times(part, weight, gates) for part, weight in zip(parts, own, strict=True)]

    def _scaled(self, value: Value, dtype: tf.DType, gates: list[tf.Operation]) -> Value:
        def scale(tensor: tf.Tensor) -> tf.Tensor:
            return tf.cast(tensor * tf.cast(self._scale, tensor.dtype), dtype)

        with tf.control_dependencies(gates):  # Slices have none.
            return on_values(scale, value)


def _times(value: Value, weight: tf.Tensor, gates: list[tf.Operation]) -> Value:
    """Returns a weighted value; a tensor is taken from before its gates, which are noted."""
    if not isinstance(value, tf.IndexedSlices):
        value, waits_for = without_gates(value)
        gates += waits_for
    return weighted(value, weight)
