"""Metrics of Keras under a strategy: what a replica adds to a mean.

A metric of rows adds up sums over the rows, so it is exact in any number of parts. A mean of single
numbers, such as losses, counts each number once. Of N replicas it gets N numbers:

    a contribution of Keras' own steps    is N times its part of the loss, and counts 1/N
    any other number                      counts by the replica's share of the rows

So the variables of the metric add up to those of one process.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import tensorflow as tf

from tfdist.strategies.eager.step import loss_step, own_losses, own_share, unless_empty
from tfdist.strategies.keras.extension import extends


def adapt_metrics(library: ModuleType, *, is_keras_3: bool) -> None:
    """Makes the means of a library count as in one process."""

    @extends(library.metrics.Mean, "update_state")
    def update_by_share(update: Any, self: Any, values: Any, sample_weight: Any = None) -> Any:
        step = loss_step()
        if step is None:
            return update(self, values, sample_weight)
        is_weighted = sample_weight is not None
        if _is_contribution(values, is_keras_3):
            # A weight is the rows of the replica.
            rows = 1.0 if not is_weighted or step.total_rows is None else step.total_rows
            return update(self, values, _after(values, rows / step.num_replicas))
        if is_weighted or not tf.is_tensor(values) or values.shape.rank:
            return update(self, values, sample_weight)
        return update(self, unless_empty(values), _after(values, own_share()))


def _after(values: Any, weight: Any) -> tf.Tensor:
    """Returns a weight that waits for the values: Keras ends an epoch by a read that fails."""
    with tf.control_dependencies([values]):
        return tf.identity(tf.convert_to_tensor(weight, tf.float32))


def _is_contribution(values: Any, is_keras_3: bool) -> bool:
    losses = own_losses()
    if is_keras_3:
        return any(values is one for one in losses.contributions)
    return bool(losses.calls) and losses.calls[-1].is_container
