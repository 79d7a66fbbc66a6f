"""Values of a function that differ between replicas, and sums over a replica's rows.

A function that is traced is a graph: what a value is computed from is known. Each replica has its
own rows, random numbers, and variables that its code has assigned; all else is equal on all.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdist.strategies.graph_walks import ancestors

# Operations that give a scalar as many times as large if their input is.
_LINEAR = ("Identity", "Cast", "Mul", "Neg", "AddV2", "Add", "AddN", "Sub", "Squeeze", "Reshape")


def depends_on_replica(value: Any) -> bool | None:
    """Returns whether a value may differ between replicas; None if it is no part of a function."""
    if not tf.is_symbolic_tensor(value):
        return None
    graph = value.graph
    outer = {id(inner): captured for captured, inner in getattr(graph, "captures", ())}
    for op in ancestors([value.op], control_inputs=False):
        if op.type == "Placeholder":
            source = outer.get(id(op.outputs[0]))
            if source is None or source.dtype != tf.resource:
                return True
        elif "Random" in op.type or op.type in ("IteratorGetNext", "PartitionedCall"):
            return True
    return False


def is_sum_of_rows(value: Any) -> bool:
    """Returns whether a number is a sum over the rows of a replica, rather than their mean.

    It looks at the last reduction before it: `reduce_sum` over all or over the first axis. A sum
    that is divided by another value is a mean.
    """
    if not tf.is_symbolic_tensor(value) or depends_on_replica(value) is not True:
        return False
    op = value.op
    while op.type in _LINEAR:
        varying = [one for one in op.inputs if depends_on_replica(one)]
        if len(varying) != 1:
            return bool(varying) and all(is_sum_of_rows(one) for one in varying)
        op = varying[0].op
    if op.type != "Sum":
        return False
    axes = tf.get_static_value(op.inputs[1])
    return axes is not None and (axes.size == 0 or 0 in axes.ravel())
