"""TensorFlow's ring collectives in TensorFlow 2: eager, or in a tf.function.

The key of a collective is a number that its name decides. A server remembers the length of a key's
first tensor, so the length is part of the key; it may differ from step to step, and the key is
computed when the operation runs. It remembers the shape as well, so tensors are sent flat.
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
        input=_flat(tensor),
        **_common(tensor, num_workers, group_key, name),
        ordering_token=[],
        merge_op="Add",
        final_op="Id",
        max_subdivs_per_device=1,
    )
    return _unordered(total, tensor, tf.shape(tensor), tensor.shape)


def gather(tensor: tf.Tensor, num_workers: int, group_key: int, name: str) -> tf.Tensor:
    """Concatenates tensors of one shape: [workers * rows, ...]."""
    gathered = tf.raw_ops.CollectiveGatherV2(
        input=_flat(tensor), **_common(tensor, num_workers, group_key, name), ordering_token=[]
    )
    rows, *inner = tensor.shape
    static = [None if rows is None else rows * num_workers, *inner]
    return _unordered(gathered, tensor, tf.concat([[-1], tf.shape(tensor)[1:]], 0), static)


def broadcast(
    tensor: tf.Tensor, is_sender: bool, num_workers: int, group_key: int, name: str
) -> tf.Tensor:
    """Returns the sender's tensor on every worker; shapes are equal."""
    common = _common(tensor, num_workers, group_key, name)
    if is_sender:
        received = tf.raw_ops.CollectiveBcastSendV2(input=_flat(tensor), **common)
    else:
        received = tf.raw_ops.CollectiveBcastRecvV2(
            T=tensor.dtype, shape=[tf.size(tensor)], **common
        )
    return _unordered(received, tensor, tf.shape(tensor), tensor.shape)


def _common(tensor: tf.Tensor, num_workers: int, group_key: int, name: str) -> dict[str, Any]:
    key = tf.constant(_key(f"{group_key} {message_name(name)} {tensor.dtype.name}"))
    # Steps of a large odd number: lengths that are near each other give keys that are not.
    length = tf.size(tensor) * 0x5BD1E995
    return {
        "group_size": num_workers,
        "group_key": group_key,
        "instance_key": tf.bitwise.bitwise_and(key + length, _MOST),
        "communication_hint": "ring",
    }


def _key(full_name: str) -> int:
    key = zlib.crc32(full_name.encode()) & _MOST
    while _names.setdefault(key, full_name) != full_name:
        key = (key + 1) & _MOST
    return key


def _flat(tensor: tf.Tensor) -> tf.Tensor:
    return tensor if tensor.shape.rank == 1 else tf.reshape(tensor, [-1])


def _unordered(result: tf.Tensor, sent: tf.Tensor, shape: tf.Tensor, static: Any) -> tf.Tensor:
    """Takes a collective out of the order of a tf.function's stateful operations.

    Args:
      result: What it has returned, flat.
      sent: What was sent.
      shape: The shape of the result.
      static: What is known of it in advance.
    """
    if not tf.executing_eagerly():
        run_independently(result.op)
    if sent.shape.rank != 1:
        result = tf.reshape(result, shape)
    if not tf.executing_eagerly():
        result.set_shape(static)
    return result
