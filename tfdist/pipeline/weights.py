"""The weights' values in one weight update."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf


class Weights:
    """Reads each weight once, and copies it once to each device that uses it.

    Args:
      handle_of: From a variable's handle in the trace to its handle in the graph of the calls.
    """

    def __init__(self, handle_of: Callable[[tf.Tensor], tf.Tensor]) -> None:
        self._handle_of = handle_of
        self._copies: dict[tuple[str, str], tf.Tensor] = {}

    def __call__(self, read: tf.Tensor, device: str) -> tf.Tensor:
        """Returns a weight's value.

        Args:
          read: What the trace reads of the variable.
          device: Where the value shall be.
        """
        traced_handle = read.op.inputs[0]
        key = traced_handle.name, device
        if key not in self._copies:
            handle = self._handle_of(traced_handle)
            # Where the variable is, and not after what the calls wait for.
            with tf.control_dependencies(None), tf.device(None):
                value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=read.dtype)
            value = tf.ensure_shape(value, read.shape)
            with tf.device(device):
                self._copies[key] = tf.identity(value)
        return self._copies[key]
