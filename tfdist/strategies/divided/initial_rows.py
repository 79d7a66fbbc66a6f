"""The initial values of a worker's rows, equal to those of the whole table, without the others.

A table's initial value is a function. It is traced, and the part of its graph that makes the rows
is built again, for a worker's rows alone:

    whole table                                own rows, from row 500 on
    StatelessRandomUniformV2([1000, 16])  ->   the same op, [500, 16], counter + 500 * 16 / 4
    * 0.1 + -0.05                         ->   the same

TensorFlow's random ops on a CPU are Philox, a counter and a key: number i of float32 comes from
counter + i // 4, whatever the number of threads (Salmon et al., "Parallel random numbers: as easy
as 1, 2, 3", SC 2011). Draws of a truncated normal take 256 counters for four numbers. What is not
known here is computed whole, of which a worker then keeps its rows; one line says so.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import tensorflow as tf

from tfdist.process.endings import print_to_stderr
from tfdist.strategies.private_tensorflow import value_of_checkpoint
from tfdist.strategies.reductions.division import Division

# Counters for each group of numbers that a random op draws.
_COUNTERS = {
    "StatelessRandomUniformV2": 1,
    "StatelessRandomNormalV2": 1,
    "StatelessTruncatedNormalV2": 256,
}
_OF_STATE = {
    "RandomUniform": "StatelessRandomUniformV2",
    "RandomStandardNormal": "StatelessRandomNormalV2",
    "TruncatedNormal": "StatelessTruncatedNormalV2",
}
_GROUP = 4  # float32 numbers of one counter.
_PHILOX = 1
_ELEMENTWISE = (
    *("Add", "AddV2", "Sub", "Mul", "RealDiv", "Maximum", "Minimum", "Neg", "Square"),
    *("Identity", "Cast", "ClipByValue"),
)


def traced_shape(value: Any, dtype: Any) -> tuple[tf.TensorShape, tf.DType] | None:
    """Returns shape and dtype of a variable's initial value; nothing is computed.

    None if the value is not known without computing it.
    """
    if not callable(value):
        tensor = value if tf.is_tensor(value) else tf.convert_to_tensor(value, dtype)
        return tensor.shape, tensor.dtype
    restored = value_of_checkpoint(value)
    if restored is not None:
        shape = restored.checkpoint_position.value_shape()
        return tf.TensorShape(shape), tf.as_dtype(dtype or tf.float32)
    try:
        with tf.Graph().as_default():
            tensor = tf.convert_to_tensor(value(), dtype)
    except Exception:  # Of a program's function, which may need what a graph has not.
        return None
    return tensor.shape, tensor.dtype


def own_rows_of(value: Any, division: Division) -> tf.Tensor:
    """Returns this worker's rows of an initial value, a tensor of the current graph, on the host.

    Args:
      value: A function, a tensor or an array: the initial value of the whole table, or of own rows.
      division: The table's division.
    """
    if not callable(value):
        tensor = tf.convert_to_tensor(value, division.dtype)
        return (
            _rows(tensor, division) if tf.is_symbolic_tensor(tensor) else _sliced(tensor, division)
        )
    restored = value_of_checkpoint(value)
    if restored is not None:
        return _read(restored, division)
    if not tf.executing_eagerly():
        return _rows(tf.convert_to_tensor(value(), division.dtype), division)
    rows: list[tf.Tensor] = []

    def trace() -> tf.Tensor:
        rows.append(_rows(tf.convert_to_tensor(value(), division.dtype), division))
        return rows[0]

    return tf.compat.v1.wrap_function(trace, []).prune([], rows[0])()


def _read(restored: Any, division: Division) -> tf.Tensor:
    """Returns this worker's rows of a checkpoint."""
    offset = [division.own_start, *(0 for _ in division.shape[1:])]
    own = SimpleNamespace(shape=division.own_shape, offset=offset)
    return tf.convert_to_tensor(restored(division.shape, shard_info=own), division.dtype)


def _rows(whole: tf.Tensor, division: Division) -> tf.Tensor:
    if tuple(whole.shape) == division.own_shape:
        return whole
    rows = _rows_of(whole, division)
    if rows is None:
        if division.worker_index == 0:
            print_to_stderr(
                f"The initial value of {division.name} is computed whole on each worker, "
                f"{division.num_bytes:,} bytes for a moment. Give it a random or constant "
                "initializer of Keras or TensorFlow in float32, of which a worker draws its rows."
            )
        return _sliced(whole, division)
    rows.set_shape(division.own_shape)
    return rows


def _sliced(whole: tf.Tensor, division: Division) -> tf.Tensor:
    if tuple(whole.shape) == division.own_shape:
        return whole
    return tf.identity(whole[division.own_start : division.own_stop])


def _rows_of(whole: tf.Tensor, division: Division) -> tf.Tensor | None:
    """Returns own rows of a tensor of a graph without computing the others; None if unknown."""
    op = whole.op
    if op.type == "Fill":
        return tf.fill(division.own_shape, op.inputs[1])
    if op.type == "ZerosLike":
        return tf.zeros(division.own_shape, whole.dtype)
    if op.type == "Const":
        proto = op.get_attr("value")
        if not proto.tensor_content and len(proto.float_val) == 1:  # One number for all rows.
            return tf.fill(division.own_shape, proto.float_val[0])
        return tf.constant(tf.get_static_value(whole)[division.own_start : division.own_stop])
    if op.type in _ELEMENTWISE:
        inputs: list[tf.Tensor] = []
        for one in op.inputs:
            is_whole = one.shape == whole.shape
            if not is_whole and one.shape.rank not in (0, *range(1, whole.shape.rank)):
                return None
            own = _rows_of(one, division) if is_whole else one
            if own is None:
                return None
            inputs.append(own)
        copied = tf.compat.v1.get_default_graph().create_op(
            op.type, inputs, [whole.dtype], attrs=dict(op.node_def.attr)
        )
        return copied.outputs[0]
    if whole.dtype != tf.float32 or op.type not in (*_COUNTERS, *_OF_STATE):
        return None
    return _drawn(op, division)


def _drawn(op: tf.Operation, division: Division) -> tf.Tensor:
    """Returns own rows of a random op's numbers."""
    if op.type in _OF_STATE:
        first, second = op.get_attr("seed"), op.get_attr("seed2")
        if first == second == 0:  # Other numbers in each session.
            return getattr(tf.raw_ops, op.type)(shape=division.own_shape, dtype=tf.float32)
        kind = _OF_STATE[op.type]
        key, alg = tf.constant([first], tf.uint64), tf.constant(_PHILOX)
        counter = tf.constant([0, second], tf.uint64)
    else:
        kind, (_, key, counter, alg) = op.type, op.inputs
    columns = division.row_bytes // division.dtype.size
    group, skipped = divmod(division.own_start * columns, _GROUP)
    moved = tf.constant([group * _COUNTERS[kind], 0], tf.uint64)
    count = division.own_shape[0] * columns
    drawn = getattr(tf.raw_ops, kind)(
        shape=[skipped + count], key=key, counter=counter + moved, alg=alg, dtype=tf.float32
    )
    return tf.reshape(drawn[skipped:], division.own_shape)
