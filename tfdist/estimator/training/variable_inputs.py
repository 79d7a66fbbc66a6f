"""The inputs and variables that each variable is combined with in the forward pass.

Layers without a given name are numbered in the order of their creation: `dense`, `dense_1`. If two
workers create them in different orders, `dense` is another layer on each. Its name, shape and dtype
do not show that; the tensors that it is multiplied with do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

# Operations between a variable and the operation that computes with it.
_READS = {"ReadVariableOp", "Identity", "Cast", "Enter", "StopGradient"}


def find_variable_inputs(
    loss: tf.Tensor, variables: Sequence[Any], features: Any, labels: Any
) -> dict[str, list[str]]:
    """Finds what each variable is combined with where the forward pass first uses it.

    Static shapes, devices, constants and the kinds of operations are ignored: they may differ
    between workers that train the same model.

    Args:
      loss: A scalar, in the graph (or the function graph of a loop) that model_fn has built.
      variables: Trainable variables; one that the loss does not depend on is left out.
      features: The features that model_fn got; tensors in any structure.
      labels: The labels that model_fn got.

    Returns:
      For each variable's name, the inputs ("features a", "labels") and variables that the other
      operands of its operations are computed from, in a fixed order.
    """
    graph = loss.graph
    inputs = [
        (name, tensor)
        for name, tensor in _named_tensors({"features": features, "labels": labels})
        if tensor.graph is graph
    ]
    handles = {variable.op.name: _handle_in(graph, variable) for variable in variables}
    sources = [*inputs, *((name, one) for name, one in handles.items() if one is not None)]
    names = list(dict.fromkeys(name for name, _ in sources))
    marks = {tensor.name: 1 << names.index(name) for name, tensor in sources}
    forward = _ancestors(loss.op)
    reached = _marks_behind(graph, forward, marks)
    found = {}
    for name, handle in handles.items():
        if handle is None or handle.op not in forward:
            continue
        met = 0
        for user in _users(handle, forward):
            met |= reached[user]
        found[name] = [one for i, one in enumerate(names) if met >> i & 1 and one != name]
    return found


def _named_tensors(structure: Any, prefix: str = "") -> Iterator[tuple[str, tf.Tensor]]:
    if isinstance(structure, dict):
        for key, value in structure.items():
            yield from _named_tensors(value, f"{prefix} {key}".lstrip())
    elif isinstance(structure, tf.Tensor):
        yield prefix, structure
    else:
        parts = [x for x in tf.nest.flatten(structure, expand_composites=True) if tf.is_tensor(x)]
        for number, part in enumerate(parts):
            yield f"{prefix} {number}".lstrip(), part


def _handle_in(graph: tf.Graph, variable: Any) -> tf.Tensor | None:
    """Returns the tensor by which a graph, or a function's graph, refers to a variable."""
    handle = variable.handle
    if handle.graph is graph:
        return handle
    captures = getattr(graph, "captures", ())
    return next((inside for outside, inside in captures if outside is handle), None)


def _ancestors(op: tf.Operation) -> set[tf.Operation]:
    """Returns an operation and all operations that it is computed from."""
    found, waiting = {op}, [op]
    while waiting:
        sources = {tensor.op for tensor in waiting.pop().inputs} - found
        found |= sources
        waiting += sources
    return found


def _marks_behind(
    graph: tf.Graph, forward: set[tf.Operation], marks: dict[str, int]
) -> dict[tf.Operation, int]:
    """Returns the marked tensors that each operation computes with, as a set of bits.

    Args:
      graph: The graph of the operations.
      forward: The operations to follow, with all operations that they are computed from.
      marks: By a tensor's name, the bit that it sets.
    """
    reached = dict.fromkeys(forward, 0)
    ops = [op for op in graph.get_operations() if op in forward]
    has_changed = True
    while has_changed:  # Twice; more often with loops, whose edges lead back.
        has_changed = False
        for op in ops:
            mask = reached[op]
            for tensor in op.inputs:
                mask |= marks.get(tensor.name, 0) | reached[tensor.op]
            if mask != reached[op]:
                reached[op] = mask
                has_changed = True
    return reached


def _users(handle: tf.Tensor, forward: set[tf.Operation]) -> set[tf.Operation]:
    """Returns the operations that compute with a variable's value."""
    users: set[tf.Operation] = set()
    seen, waiting = {handle.op}, [handle.op]
    while waiting:
        for output in waiting.pop().outputs:
            for user in output.consumers():
                if user not in forward or user in seen:
                    continue
                if user.type in _READS:
                    seen.add(user)
                    waiting.append(user)
                else:
                    users.add(user)
    return users
