"""TensorFlow's ring collectives in TensorFlow 2: eager, or in a tf.function.

The key of a collective is a number that its name decides. A server remembers the shape of a key's
first tensor, so the shape is part of the key; it may differ from step to step, and then the key is
computed when the operation runs.
"""

from __future__ import annotations

import zlib
from typing import Any

import tensorflow as tf

from tfdist.strategies.private_tensorflow import run_independently
from tfdist.strategies.reductions.message_names import message_name

# The name of each key: two names must not have one key.
_names: dict[int, str] = {}
_MOST = 0x7FFFFFFF


def add(tensor: tf.Tensor, num_workers: int, group_key: int, name: str) -> tf.Tensor:
    """Returns the sum over the workers, of the shape of `tensor`."""
    total = tf.raw_ops.CollectiveReduceV2(
        input=tensor,
        **_common(tensor, num_workers, group_key, name),
        ordering_token=[],
        merge_op="Add",
        final_op="Id",
        max_subdivs_per_device=1,
    )
    return _unordered(total, tensor.shape)


def gather(tensor: tf.Tensor, num_workers: int, group_key: int, name: str) -> tf.Tensor:
    """Concatenates tensors of one shape: [workers * rows, ...]."""
    gathered = tf.raw_ops.CollectiveGatherV2(
        input=tensor, **_common(tensor, num_workers, group_key, name), ordering_token=[]
    )
    rows, *inner = tensor.shape
    return _unordered(gathered, [None if rows is None else rows * num_workers, *inner])


def all_to_all(tensor: tf.Tensor, num_workers: int, group_key: int, name: str) -> tf.Tensor:
    """Sends worker i the part [i, ...] of a tensor; its part [i, ...] is what worker i has sent."""
    received = tf.raw_ops.CollectiveAllToAllV2(
        input=tensor, **_common(tensor, num_workers, group_key, name), ordering_token=[]
    )
    return _unordered(received, tensor.shape)


def broadcast(
    tensor: tf.Tensor, is_sender: bool, num_workers: int, group_key: int, name: str
) -> tf.Tensor:
    """Returns the sender's tensor on every worker; shapes are equal."""
    common = _common(tensor, num_workers, group_key, name)
    if is_sender:
        received = tf.raw_ops.CollectiveBcastSendV2(input=tensor, **common)
    else:
        received = tf.raw_ops.CollectiveBcastRecvV2(
            T=tensor.dtype, shape=tf.shape(tensor), **common
        )
    return _unordered(received, tensor.shape)


def _common(tensor: tf.Tensor, num_workers: int, group_key: int, name: str) -> dict[str, Any]:
    key = _key(f"{group_key} {message_name(name)} {tensor.dtype.name}")
    return {
        "group_size": num_workers,
        "group_key": group_key,
        "instance_key": _with_shape(key, tensor),
        "communication_hint": "ring",
    }


def _with_shape(key: int, tensor: tf.Tensor) -> tf.Tensor:
    """Returns the key for the shape of a tensor; it need not be known before the operation runs.

    Each dimension counts by another large odd number, so similar shapes have keys far apart.
    """
    axes = range(tensor.shape.rank)
    factors = [(zlib.crc32(f"axis {axis}".encode()) | 1) & _MOST for axis in axes]
    if tensor.shape.is_fully_defined():
        sizes = zip(tensor.shape, factors, strict=True)
        return tf.constant((key + sum((size + 1) * factor for size, factor in sizes)) & _MOST)
    # The same number: an int32 product keeps the lower bits.
    part = tf.reduce_sum((tf.shape(tensor) + 1) * tf.constant(factors, tf.int32))
    return tf.bitwise.bitwise_and(key + part, _MOST)


def _key(full_name: str) -> int:
    key = zlib.crc32(full_name.encode()) & _MOST
    while _names.setdefault(key, full_name) != full_name:
        key = (key + 1) & _MOST
    return key


def _unordered(result: tf.Tensor, shape: Any) -> tf.Tensor:
    """Takes a collective out of the order of a tf.function's stateful operations."""
    if not tf.executing_eagerly():
        run_independently(result.op)
        result.set_shape(shape)
    return result
