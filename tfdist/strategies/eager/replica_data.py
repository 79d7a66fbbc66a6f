"""Values of a function that differ between replicas, and sums over a replica's rows.

A function that is traced is a graph: what a value is computed from is known. Each replica has its
own rows, random numbers, and variables that its code has assigned; all else is equal on all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

# Operations that give a scalar as many times as large if their input is.
_LINEAR = ("Identity", "Cast", "Mul", "Neg", "AddV2", "Add", "AddN", "Sub", "Squeeze", "Reshape")


def depends_on_replica(
    value: Any, has_own_values: Callable[[tf.Tensor], bool] = lambda handle: False
) -> bool | None:
    """Returns whether a value may differ between replicas; None if it is no part of a function.

    `has_own_values` tells of a variable's handle whether each replica has another value there.
    """
    if not tf.is_symbolic_tensor(value):
        return None
    outer = {id(inside): outside for outside, inside in getattr(value.graph, "captures", ())}
    found, waiting = set[tf.Operation](), [value.op]
    while waiting:
        op = waiting.pop()
        if op.type == "Placeholder":
            source = outer.get(id(op.outputs[0]))
            if source is None or source.dtype != tf.resource or has_own_values(source):
                return True
        elif "Random" in op.type or op.type in ("IteratorGetNext", "PartitionedCall"):
            return True
        found.add(op)
        waiting += [tensor.op for tensor in op.inputs if tensor.op not in found]
    return False


def is_sum_of_rows(value: Any) -> bool:
    """Returns whether a number is a sum over the rows of a replica, rather than their mean.

    It looks at the last reduction before it: `reduce_sum` over all or over the first axis. A sum
    that is divided by another value is a mean.
    """
    return _is_reduced("Sum", value)


def is_mean_of_rows(value: Any) -> bool:
    """Returns whether a number is a mean over the rows of a replica, with the same rule."""
    return _is_reduced("Mean", value)


def _is_reduced(kind: str, value: Any) -> bool:
    if not tf.is_symbolic_tensor(value) or depends_on_replica(value) is not True:
        return False
    op = value.op
    while op.type in _LINEAR:
        varying = [tensor for tensor in op.inputs if depends_on_replica(tensor)]
        if len(varying) != 1:
            return bool(varying) and all(_is_reduced(kind, tensor) for tensor in varying)
        op = varying[0].op
    if op.type != kind:
        return False
    axes, rank = tf.get_static_value(op.inputs[1]), op.inputs[0].shape.rank
    first = (0,) if rank is None else (0, -rank)
    return axes is not None and (axes.size == 0 or any(axis in first for axis in axes.ravel()))


def adds_to(variable: Any, value: Any) -> bool:
    """Returns whether a value is what a `ReplicaVariable` has, plus or minus something."""
    if not tf.is_symbolic_tensor(value):
        return True  # As far as is known.
    op = value.op
    while op.type in ("Identity", "Cast") and op.inputs:
        op = op.inputs[0].op
    if op.type == "ReadVariableOp":
        inner = {id(inside): outside for outside, inside in getattr(op.graph, "captures", ())}
        handle = inner.get(id(op.inputs[0]))
        return any(handle is part for part in variable.handles)
    terms = op.inputs if op.type in ("AddV2", "Add", "AddN") else op.inputs[:1]
    is_sum = op.type in ("AddV2", "Add", "AddN", "Sub")
    return is_sum and any(adds_to(variable, term) for term in terms)
