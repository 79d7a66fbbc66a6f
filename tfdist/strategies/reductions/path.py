"""The path of gradients through a reduction: functions over lists, in this order.

    split -> weigh -> reduce -> unweigh -> join

`split`     A tied table's gradient becomes two values: its dense part, and its rows.
`weigh`     Each replica's values are multiplied by the replica's weight.
`reduce`    The values are added over this worker's replicas, then over the workers (`reducer`).
`unweigh`   The sums are divided by the sum of all weights.
`join`      The rows are added to the table.

Each takes and returns a list with one element per value. Before `reduce` an element has one tensor
for each replica of this worker, or one that stands for all of them; after it, one tensor. The two
steps of weights are left out without them.

Gates are taken off once, behind `split`, and put back once, before `join`: `ungated` takes a large
gradient, or one that is weighted, from before its gates (see `early_reduction`), and `gated` makes
what has been reduced wait for them.

Weights are for a loss that is a mean over w items, such as masked tokens: it counts by w. With the
weights w_r of all R replicas, a gradient g_r of each, and the convention that a sum of gradients is
the gradient of the mean loss (each g_r has been divided by R):

    replica           host of its worker        wire        host
    g_r  ---------->  w_r g_r  -------------->  sum  ---->  R sum(w_r g_r) / sum(w_r)
    w_r  ---------->  w_r      -------------->  sum  ----'

The sum of the weights is needed only behind the reduction. So no gradient waits for it, and it
shares a message with other small sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.strategies.placement import HOST
from tfdist.strategies.reductions import early_reduction, tied_tables
from tfdist.strategies.reductions.slices import Value, on_values, scaled, weighted

# One value: a tensor for each replica of this worker, or one for all of them.
ReplicaValues = Sequence[Value]
Gates = Sequence[tf.Operation]


class ReplicaWeights:
    """The weights of all replicas in a step.

    Args:
      own: float32 scalars, one per replica of this worker.
      total: float32 scalar, the sum of the weights of all replicas of all workers.
      num_replicas: The number of all replicas.

    Attributes:
      num_weighted: The number of values that were weighted.
    """

    def __init__(self, own: Sequence[tf.Tensor], total: tf.Tensor, num_replicas: int) -> None:
        self.num_weighted = 0
        self._own = own
        self._is_updating = False
        with tf.device(HOST):
            self._is_any = total > 0  # bool []
            # In float64 for gradients in float64; [].
            count = tf.constant(num_replicas, tf.float64)
            # num_replicas / total; 0 where the total is 0.
            self._scale = tf.math.divide_no_nan(count, tf.cast(total, tf.float64))
        self._switches: dict[tf.Graph, tuple[tf.Tensor, tf.Tensor]] = {}
        self._switch()

    def weigh(self, values: Sequence[ReplicaValues]) -> list[ReplicaValues]:
        """Multiplies the values of each replica by its weight."""
        self.num_weighted += len(values)
        with tf.device(HOST), tf.name_scope("weighted"):
            return [
                [
                    weighted(part, weight)
                    for part, weight in zip(parts, self._weights_of(parts), strict=True)
                ]
                for parts in values
            ]

    def unweigh(self, values: Sequence[Value], dtypes: Sequence[tf.DType]) -> list[Value]:
        """Divides weighted sums by the sum of the weights, and casts them to their own dtypes."""
        with tf.device(HOST), tf.name_scope("weighted"):
            kinds = dict.fromkeys(value.dtype for value in values)
            scales = {dtype: tf.cast(self._scale, dtype) for dtype in kinds}  # [] each
            return [
                on_values(partial(tf.cast, dtype=dtype), scaled(value, scales[value.dtype]))
                for value, dtype in zip(values, dtypes, strict=True)
            ]

    def _weights_of(self, parts: ReplicaValues) -> Sequence[tf.Tensor]:
        """Returns one weight per part: their mean for a value that all replicas share."""
        if len(parts) == len(self._own):
            return self._own
        return [tf.add_n(self._own) / float(len(self._own))]

    def if_any(self, update: Callable[[], Any]) -> Any:
        """Returns an op for what `update` returns: its ops run unless all weights are 0.

        Every worker knows the total and decides alike; no reduction is part of the condition. A
        `tf.cond` would have two functions of its own for each variable, which take long to build:

            total > 0 --> Switch --> is any --(control)--> ops of update --> Merge --> op
                                `-> is none ------------------------------/

        An op that waits for the output of a Switch that has no value does not run.
        """
        if self._is_updating:
            return tf.group(update())
        is_any, is_none = self._switch()
        self._is_updating = True
        try:
            with tf.control_dependencies([is_any]):
                updated = tf.group(update())
        finally:
            self._is_updating = False
        with tf.control_dependencies([updated]):
            is_updated = tf.identity(is_any)
        return tf.raw_ops.Merge(inputs=[is_updated, is_none]).output.op

    def _switch(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns two tensors of the current graph: one exists if a weight is not 0, one if not."""
        graph = v1.get_default_graph()
        if graph not in self._switches:
            with tf.device(HOST):
                is_none, is_any = tf.raw_ops.Switch(data=self._is_any, pred=self._is_any)
                self._switches[graph] = tf.identity(is_any), tf.identity(is_none)
        return self._switches[graph]


def ungated(
    values: Sequence[ReplicaValues], is_chosen: Callable[[tf.Tensor], bool]
) -> tuple[list[ReplicaValues], list[Gates]]:
    """Returns each value as it is before its gates, and these gates; slices stay behind theirs."""
    sources: list[ReplicaValues] = []
    gates: list[Gates] = []
    for parts in values:
        found = [
            early_reduction.without_gates(part)
            if isinstance(part, tf.Tensor) and is_chosen(part)
            else (part, [])
            for part in parts
        ]
        sources.append([source for source, _ in found])
        gates.append([gate for _, waits_for in found for gate in waits_for])
    return sources, gates


def split(
    values: Sequence[ReplicaValues],
    names: Sequence[str],
    *,
    num_replicas: int,
    threshold_bytes: float,
) -> tuple[list[ReplicaValues], list[str], list[int]]:
    """Splits gradients of tied tables, if they are large, into a dense part and rows.

    Returns:
      (values, their names, for each the index of its gradient).
    """
    found: list[tuple[ReplicaValues, str, int]] = []
    for index, (parts, name) in enumerate(zip(values, names, strict=True)):
        pairs = [tied_tables.dense_and_rows(p, num_replicas, threshold_bytes) for p in parts]
        both = [pair for pair in pairs if pair is not None]
        if len(both) == len(parts):
            found.append(([dense for dense, _ in both], name, index))
            found.append(([rows for _, rows in both], f"{name}/rows", index))
        else:
            found.append((parts, name, index))
    return [f[0] for f in found], [f[1] for f in found], [f[2] for f in found]


def join(values: Sequence[Value], gradients: Sequence[int]) -> list[Value]:
    """Adds the rows that `split` has split off to the tables of the same gradient's index."""
    joined: list[Value] = []
    for value, index in zip(values, gradients, strict=True):
        if index == len(joined):
            joined.append(value)
        else:
            joined[index] = tied_tables.add_rows(joined[index], value)
    return joined


def gated(values: Sequence[Value], gates: Sequence[Gates]) -> list[Value]:
    """Makes each value wait for the gates that its gradient was taken from before."""
    with tf.device(HOST):
        return [_behind(value, own) for value, own in zip(values, gates, strict=True)]


def _behind(value: Value, gates: Gates) -> Value:
    if not gates:
        return value
    with tf.control_dependencies(gates):
        return tf.identity(value)
