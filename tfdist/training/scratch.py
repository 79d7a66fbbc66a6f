"""A variable that lives for one step, so that a fused kernel can add to a computed tensor."""

from __future__ import annotations

import tensorflow as tf

from tfdist.strategies.private_tensorflow import anonymous_name


def scratch_with(value: tf.Tensor) -> tf.Tensor:
    """Returns the handle of a variable that takes over a tensor's memory; freed after its use."""
    handle = tf.raw_ops.VarHandleOp(
        dtype=value.dtype, shape=value.shape, shared_name=anonymous_name()
    )
    with tf.control_dependencies([tf.raw_ops.AssignVariableOp(resource=handle, value=value)]):
        return tf.identity(handle)
