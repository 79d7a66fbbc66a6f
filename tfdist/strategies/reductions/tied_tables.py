"""Gradients of tied tables: the dense part is reduced early, and the looked-up rows at the end.

A model may look up rows of a table and also multiply by the whole table: BERT's word embedding is
its decoder as well. TensorFlow gives such a table one gradient, the sum of two. The decoder's part
is dense and exists when the backward pass has just begun; the rows exist at its very end:

    without   device  | dense | layers ... | rows | fill a table, add |
              wire                                                    | reduce table |
              host                                                                   | update |

    with      device  | dense | layers ... | rows |
              wire            | reduce table |    | gather rows |
              host                                              | add rows | update |

Rows of all workers are added to the reduced table, in the workers' order. So the largest gradient
of the model leaves first, and no second table is filled and added. The sum is the same but for the
order of additions, and equal bit by bit on all workers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from tfdist.strategies.placement import HOST
from tfdist.strategies.reductions.early_reduction import behind_gates, without_gates
from tfdist.strategies.reductions.slices import Value

# The gathered rows of all replicas are at most this share of the table.
_MOST_ROWS = 0.5

# Reduces values, of which each has a name: one tensor per replica of this worker each.
Reduce = Callable[[Sequence[Sequence[Value]], Sequence[str]], list[Value]]


def reduce_in_parts(
    values: Sequence[Sequence[Value]],
    names: Sequence[str],
    reduce: Reduce,
    *,
    num_replicas: int,
    threshold_bytes: int,
) -> list[Value]:
    """Reduces gradients; those of tied tables in two parts, which are added afterwards.

    A collective: every worker must call it, with the same graph.

    Args:
      values: For each gradient, one value per replica of this worker, or one for all.
      names: The name of each gradient's variable.
      reduce: Reduces such values.
      num_replicas: The number of replicas of all workers.
      threshold_bytes: Gradients below this size are reduced as they are.

    Returns:
      One value per gradient, of its kind, shape and dtype.
    """
    parts: list[list[list[Value]]] = []  # Of each gradient: the values of one part in all replicas.
    gates: list[list[tf.Operation]] = []
    for own in values:
        split = [_split(value, num_replicas, threshold_bytes) for value in own]
        if all(found for found, _ in split):
            parts.append([list(part) for part in zip(*(found for found, _ in split), strict=True)])
            gates.append([gate for _, waits_for in split for gate in waits_for])
        else:
            parts.append([list(own)])
            gates.append([])
    all_names = [
        name if number == 0 else f"{name}/rows"
        for name, own in zip(names, parts, strict=True)
        for number in range(len(own))
    ]
    reduced = iter(reduce([part for own in parts for part in own], all_names))
    return [
        _join([next(reduced) for _ in own], waits_for)
        for own, waits_for in zip(parts, gates, strict=True)
    ]


def _split(
    value: Value, num_replicas: int, threshold_bytes: int
) -> tuple[list[Value], list[tf.Operation]]:
    """Returns the dense part and the rows of a sum of both, and the gates behind the sum.

    Of any other value it returns no part.
    """
    if isinstance(value, tf.IndexedSlices):
        return [], []
    if (value.shape.num_elements() or 0) * value.dtype.size < threshold_bytes:
        return [], []
    total, gates = without_gates(value)
    addends = total.op.inputs if total.op.type == "AddN" else []
    rows = [addend for addend in addends if _is_filled_with_rows(addend)]
    dense = [addend for addend in addends if not _is_filled_with_rows(addend)]
    num_rows = sum(addend.op.inputs[1].shape.num_elements() for addend in rows)
    if not (rows and dense) or num_rows * num_replicas > _MOST_ROWS * value.shape[0]:
        return [], []
    with tf.device(total.device):
        looked_up = tf.IndexedSlices(
            _concat([addend.op.inputs[0] for addend in rows]),  # [rows, columns]
            _concat([addend.op.inputs[1] for addend in rows]),  # [rows]
        )
        return [dense[0] if len(dense) == 1 else tf.add_n(dense), looked_up], gates


def _is_filled_with_rows(tensor: tf.Tensor) -> bool:
    """Returns whether a tensor is a table of zeros to which a known number of rows was added.

    So TensorFlow makes a dense gradient of `tf.IndexedSlices`.
    """
    if tensor.op.type != "UnsortedSegmentSum":
        return False
    indices = tensor.op.inputs[1]
    return indices.shape.rank == 1 and indices.shape.num_elements() is not None


def _concat(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    return tensors[0] if len(tensors) == 1 else tf.concat(tensors, axis=0)


def _join(parts: Sequence[Value], gates: Sequence[tf.Operation]) -> Value:
    """Returns the sum of a gradient's parts, which waits for gates."""
    if len(parts) == 1:
        return parts[0]
    table, rows = parts
    with tf.device(HOST), tf.name_scope("add_rows"):
        total = tf.tensor_scatter_nd_add(table, rows.indices[:, None], rows.values)
        return behind_gates(total, gates)
