"""Assignments to a variable that several replicas share, by the variable's aggregation.

Each replica's code assigns a value of its own to the one variable:

    aggregation           replica 0      replica 1         the variable of both
    ONLY_FIRST_REPLICA    a0             -                 a0
    MEAN                  a0 -------+--- a1                (a0 + a1) / 2
    SUM                   a0 -------+--- a1                a0 + a1
    NONE                  a0             a1                both assignments run

As TensorFlow's mirrored variables do; those refuse NONE. Each worker aggregates over its own
replicas, without a message. Assignments in cross-replica context are as they were.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.process.endings import OneLineError
from tfdist.strategies.reductions.collectives import add_replicas
from tfdist.strategies.values.replica_context import is_in_replica, replica_in_worker

_ASSIGNMENTS = ("assign", "assign_add", "assign_sub")


class AggregationError(OneLineError, ValueError):
    """A variable is made or updated in a way in which its replicas' values cannot be combined."""


def refuse_mean_of_integers(variable: Any) -> None:
    """Raises an AggregationError if the replicas' mean is assigned to a variable of integers."""
    dtype = variable.dtype.base_dtype
    is_mean = variable.aggregation == tf.VariableAggregation.MEAN
    if is_mean and not (dtype.is_floating or dtype.is_complex):
        raise AggregationError(
            f"{variable.name} has aggregation MEAN and dtype {dtype.name}, which cannot hold the "
            "mean of its replicas' values. Make it of a floating-point dtype, or with aggregation="
            "tf.VariableAggregation.SUM or ONLY_FIRST_REPLICA."
        )


def aggregate_assignments(variable: Any) -> None:
    """Lets assignments to a resource variable that replicas share follow its aggregation."""
    if variable.aggregation == tf.VariableAggregation.NONE:
        return
    for name in _ASSIGNMENTS:
        setattr(variable, name, _aggregated(variable, getattr(variable, name)))


def _aggregated(variable: Any, assign: Callable[..., Any]) -> Callable[..., Any]:
    is_of_first = variable.aggregation == tf.VariableAggregation.ONLY_FIRST_REPLICA
    is_mean = variable.aggregation == tf.VariableAggregation.MEAN

    def of_first_replica(*args: Any, **kwargs: Any) -> Any:
        if replica_in_worker() > 0:
            return variable if kwargs.get("read_value", True) else tf.no_op()
        return assign(*args, **kwargs)

    def of_all_replicas(value: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_in_replica():
            return assign(value, *args, **kwargs)

        def merge(_: Any, value: Any) -> Any:
            if isinstance(value, tf.distribute.DistributedValues):
                value = add_replicas(value.values, mean=is_mean)
            with tf.device(variable.device):
                return assign(value, *args, **kwargs)

        value = tf.convert_to_tensor(value, variable.dtype.base_dtype)
        return tf.distribute.get_replica_context().merge_call(merge, args=(value,))

    return of_first_replica if is_of_first else of_all_replicas
