"""Does a step learn anything? Said before the first one: a loss that stays is easily missed."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

# Whatever else uses a variable may change it: an assignment, an optimizer's op, a loop's body.
_READS = frozenset(
    {
        "DisableCopyOnRead", "Identity", "ReadVariableOp", "ResourceGather", "ResourceGatherNd",
        "VarIsInitializedOp", "VariableShape",
    }
)  # fmt: skip


def warn_if_nothing_is_learnt(train_op: tf.Operation) -> None:
    """Warns if a step changes none of the graph's trainable variables.

    Args:
      train_op: What each step runs.
    """
    variables = v1.trainable_variables()
    if not variables:
        return
    run = _runs_with(train_op)
    if any(_is_changed(variable, run) for variable in variables):
        return
    v1.logging.warning(
        "train_op changes none of the %d trainable variables, unless a hook does. Optimizers of "
        "Keras 3, and the newer ones of tf_keras, change nothing in a graph: use those of "
        "tf_keras.optimizers.legacy or tf.compat.v1.train.",
        len(variables),
    )


def _is_changed(variable: Any, run: set[tf.Operation]) -> bool:
    handle = variable.handle if hasattr(variable, "handle") else variable.op.outputs[0]
    return any(op in run and op.type not in _READS for op in handle.consumers())


def _runs_with(op: tf.Operation) -> set[tf.Operation]:
    """Lists what runs whenever an op does."""
    found: set[tf.Operation] = set()
    waiting = [op]
    while waiting:
        current = waiting.pop()
        if current not in found:
            found.add(current)
            waiting += [tensor.op for tensor in current.inputs]
            waiting += current.control_inputs
    return found
