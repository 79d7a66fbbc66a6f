"""Exchange of rows of a divided table between the workers: look-ups, and gradients to their owners.

A look-up on one of two workers; the other one does the same at the same time:

    worker 0 (rows 0 to 4)                        worker 1 (rows 5 to 9)
    ids 7 2 7 0
    each once, by owner: 2 0 | 7
                          7  -- 1. ids ------->   reads row 7
    row 7                <-- 2. rows ----------   row 7
    reads rows 2, 0
    rows 7 2 7 0

    gradients of 7 2 7 0  -- 3. ids and rows -->  adds rows of equal id, takes the mean, updates

Every function here is a collective: every worker must call it, also without any id.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

import tensorflow as tf

from tfdist.strategies.placement import HOST
from tfdist.strategies.reductions.division import Division
from tfdist.strategies.reductions.engine import Collectives, Routes

# The shapes of the slices that owners have got, by `id`.
_own_shapes: WeakValueDictionary[int, Any] = WeakValueDictionary()


def look_up(
    collectives: Collectives,
    division: Division,
    ids: tf.Tensor,
    read: Callable[[tf.Tensor], tf.Tensor],
    name: str,
) -> tf.Tensor:
    """Returns rows of a divided table.

    Args:
      collectives: The engine.
      division: The table's division.
      ids: Integers of any shape, from 0 to the number of rows.
      read: Reads some of this worker's rows, by their numbers among these, [rows].
      name: The name of the messages.

    Returns:
      [*ids, ...] rows, on the host.
    """
    with tf.device(HOST):
        flat = tf.cast(tf.reshape(ids, [-1]), division.row_dtype)  # [ids]
        flat = _checked(flat, division)
        once, position = tf.unique(flat)  # [different], [ids]
        order, sizes = _by_owner(once, division)
        wanted, routes = collectives.exchange(tf.gather(once, order), Routes(sizes), f"{name}/ids")
        found = read(wanted - division.own_start)  # [rows wanted by others, ...]
        rows, _ = collectives.exchange(found, routes.back(), f"{name}/rows")
        place = tf.gather(tf.math.invert_permutation(order), position)  # [ids]
        looked_up = tf.gather(rows, place)
        looked_up = tf.reshape(looked_up, tf.concat([tf.shape(ids), division.shape[1:]], 0))
        looked_up.set_shape(ids.shape.concatenate(division.shape[1:]))
        return looked_up


def send_to_owners(
    collectives: Collectives, division: Division, slices: tf.IndexedSlices, name: str
) -> tf.IndexedSlices:
    """Sends rows of a gradient to the workers that have these rows of the table.

    The number of a row travels in front of it, as bits:

        id      row of the gradient
        4 bytes of a float32 row, 8 of a float64 row

    Args:
      collectives: The engine.
      division: The table's division.
      slices: Rows of this worker's gradient; indices in the whole table.
      name: The name of the messages.

    Returns:
      The rows of all workers, in worker order; indices among this worker's rows.
    """
    with tf.device(HOST):
        ids = tf.cast(slices.indices, division.row_dtype)  # [rows]
        order, sizes = _by_owner(ids, division)
        ids, values = tf.gather(ids, order), tf.gather(slices.values, order)
        columns = tf.reshape(values, [-1, max(division.row_bytes // division.dtype.size, 1)])
        wide = tf.int64 if values.dtype.size == 8 else tf.int32
        if values.dtype.size in (4, 8) and ids.dtype.size <= values.dtype.size:
            # As integers: small ones are no normal floating-point numbers.
            bits = tf.bitcast(columns, wide)  # [rows, columns]
            both = tf.concat([tf.cast(ids, wide)[:, tf.newaxis], bits], axis=1)
            received, _ = collectives.exchange(both, Routes(sizes), f"{name}/rows")
            ids, columns = received[:, 0], tf.bitcast(received[:, 1:], values.dtype)
        else:
            ids, routes = collectives.exchange(ids, Routes(sizes), f"{name}/ids")
            columns, _ = collectives.exchange(
                columns, Routes(sizes, routes.received, routes.most), f"{name}/rows"
            )
        values = tf.reshape(columns, [-1, *division.shape[1:]])
        own = tf.constant(division.own_shape, tf.int64)
        _own_shapes[id(own)] = own
        return tf.IndexedSlices(values, ids - tf.cast(division.own_start, ids.dtype), own)


def is_of_own_rows(slices: tf.IndexedSlices, division: Division) -> bool:
    """Returns whether slices are those of this worker's rows, as `send_to_owners` returns them."""
    shape = None if slices.dense_shape is None else tf.get_static_value(slices.dense_shape)
    return shape is not None and tuple(shape) == division.own_shape


def is_of_divided_table(gradient: Any) -> bool:
    """Returns whether a gradient is made of slices that `send_to_owners` has returned.

    True also after functions of its rows that leave the tensor of its shape as it is.
    """
    shape = getattr(gradient, "dense_shape", None)
    return shape is not None and _own_shapes.get(id(shape)) is shape


def _by_owner(ids: tf.Tensor, division: Division) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns an order of ids, [ids], in which those of worker 0 come first; and their numbers.

    int32 [workers]. Ids of one owner stay in order.
    """
    owners = division.owners(ids)
    sizes = tf.math.bincount(owners, minlength=division.num_workers, maxlength=division.num_workers)
    sizes.set_shape([division.num_workers])
    return tf.argsort(owners, stable=True), sizes


def _checked(ids: tf.Tensor, division: Division) -> tf.Tensor:
    """Returns ids; the step fails, on this worker's host, if one is not a row."""
    wrong = tf.boolean_mask(ids, (ids < 0) | (ids >= division.num_rows))
    text = f"{division.name} has {division.num_rows:,} rows, from 0 on; a look-up asks for row"
    with tf.control_dependencies(
        [tf.debugging.Assert(tf.equal(tf.size(wrong), 0), [text, wrong[:1]])]
    ):
        return tf.identity(ids)
