"""A check before the first step: with several replicas, the gradients are reduced.

An optimizer of TensorFlow or Keras reduces gradients in `apply_gradients`. One that overrides
`apply_gradients` and assigns the variables itself does not: each worker would train another model.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.estimator.loop.model_check import ModelMismatchError, changes_of
from tfdist.strategies.reductions.reducer import GATHERED_ROWS


def check_gradients_are_reduced(
    train_op: tf.Operation, loss: tf.Tensor, num_reductions: int, num_replicas: int
) -> None:
    """Checks that replicas which change trainable variables combine something before.

    A program that reduces any value over the replicas, by the strategy or by ops of its own, may
    know what it does. Only one that reduces nothing at all is refused.

    Args:
      train_op: The op that each session call runs.
      loss: The loss of a step, which is in the graph of a loop of steps.
      num_reductions: The number of values that the strategy reduces in each step.
      num_replicas: The number of replicas of all workers.

    Raises:
      ModelMismatchError: If the replicas' models would drift apart.
    """
    if num_replicas == 1 or num_reductions:
        return
    changes = changes_of(v1.trainable_variables(), train_op)
    if not changes or _has_own_reductions(train_op.graph):
        return
    # In a loop of steps the change is inside the loop's op.
    changed_by = _changed_by([*changes, *loss.graph.get_operations()])
    raise ModelMismatchError(
        f"{changed_by} changes trainable variables and reduces no gradient: "
        f"{num_replicas} replicas would train {num_replicas} different models. Wrap the optimizer, "
        "tfdist.training.DistributedOptimizer(optimizer), or let its apply_gradients end with "
        "super().apply_gradients of tf.compat.v1.train.Optimizer, which reduces."
    )


def _has_own_reductions(graph: tf.Graph) -> bool:
    """Returns whether the program has collectives of its own, such as Horovod's, in the graph."""
    definition = graph.as_graph_def()
    nodes = [definition.node, *(function.node_def for function in definition.library.function)]
    # Statistics of a batch norm over replicas are no gradients.
    types = {node.op for part in nodes for node in part if GATHERED_ROWS not in node.name}
    # Broadcasts share the variables' initial values.
    return any(
        name.startswith(("Horovod", "Collective", "Nccl", "XlaAllReduce"))
        and "Broadcast" not in name
        and "Bcast" not in name
        for name in types
    )


def _changed_by(ops: list[tf.Operation]) -> str:
    """Returns the name of the optimizer that made one of these ops, or that of the first op."""
    for op in ops:
        for frame in reversed(op.traceback or ()):
            kind = _optimizer_at(frame) if frame.name == "apply_gradients" else None
            if kind is not None:
                return f"{kind.__name__}.apply_gradients ({frame.filename}:{frame.lineno})"
    return f"The op {ops[0].name!r}"


def _optimizer_at(frame: Any) -> type[Any] | None:
    """Returns the optimizer's class whose apply_gradients a frame of a traceback is in."""
    for kind in _subclasses_of(v1.train.Optimizer):
        code = getattr(vars(kind).get("apply_gradients"), "__code__", None)
        if code is None or code.co_filename != frame.filename:
            continue
        if any(frame.lineno == line for *_, line in code.co_lines()):
            return kind
    return None


def _subclasses_of(kind: type[Any]) -> Iterator[type[Any]]:
    for subclass in kind.__subclasses__():
        yield subclass
        yield from _subclasses_of(subclass)
