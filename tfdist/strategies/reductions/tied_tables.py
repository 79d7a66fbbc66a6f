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

from collections.abc import Sequence

import tensorflow as tf

from tfdist.strategies.placement import HOST
from tfdist.strategies.reductions.early_reduction import behind_gates, without_gates
from tfdist.strategies.reductions.slices import Value, is_large

# The gathered rows of all replicas are at most this share of the table.
_MOST_ROWS = 0.5


def dense_and_rows(
    gradient: Value, num_replicas: int, threshold_bytes: float
) -> tuple[tf.Tensor, tf.IndexedSlices] | None:
    """Returns the parts of a tied table's gradient; None for any other value.

    Gradients below the threshold have no parts. The dense part waits for the gates that the
    gradient is behind.
    """
    if tf.executing_eagerly() or not is_large(gradient, threshold_bytes):
        return None  # An eager tensor has no graph to look at.
    total, gates = without_gates(gradient)
    addends = total.op.inputs if total.op.type == "AddN" else []
    rows = [addend for addend in addends if _is_filled_with_rows(addend)]
    dense = [addend for addend in addends if not _is_filled_with_rows(addend)]
    num_rows = sum(addend.op.inputs[1].shape.num_elements() for addend in rows)
    if not (rows and dense) or num_rows * num_replicas > _MOST_ROWS * gradient.shape[0]:
        return None
    with tf.device(total.device):
        looked_up = tf.IndexedSlices(
            _concat([addend.op.inputs[0] for addend in rows]),  # [rows, columns]
            _concat([addend.op.inputs[1] for addend in rows]),  # [rows]
        )
        table = dense[0] if len(dense) == 1 else tf.add_n(dense)
        return behind_gates(table, gates), looked_up


def add_rows(table: tf.Tensor, rows: tf.IndexedSlices) -> tf.Tensor:
    """Returns a reduced table with the reduced rows added."""
    with tf.device(HOST), tf.name_scope("add_rows"):
        return tf.tensor_scatter_nd_add(table, rows.indices[:, None], rows.values)


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
