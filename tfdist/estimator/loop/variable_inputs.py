"""The inputs and variables that each variable is combined with in the forward pass.

Layers without a given name are numbered in the order of their creation: `dense`, `dense_1`. If two
workers create them in different orders, `dense` is another layer on each. Its name, shape and dtype
do not show that; the tensors that it is multiplied with do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from typing import Any

import tensorflow as tf

from tfdist.strategies.graph_walks import ancestors, bits_behind, consumers_of, descendants

# Operations between a variable and the operation that computes with it.
_READS = {"ReadVariableOp", "Identity", "Cast", "Enter", "StopGradient"}


def find_variable_inputs(
    loss: tf.Tensor, variables: Sequence[Any], features: Any, labels: Any
) -> dict[str, list[str]]:
    """Finds what each variable is combined with where the forward pass first uses it.

    Static shapes, devices, constants and the kinds of operations are ignored: they may differ
    between workers that train the same model. The graph is that of the loss, which may be the
    function graph of a loop. A variable that the loss does not depend on is left out.

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
    marks = {tensor.name: (tensor, 1 << names.index(name)) for name, tensor in sources}
    forward = ancestors([loss.op], control_inputs=False)
    in_order = filter(forward.__contains__, graph.get_operations())
    reached = bits_behind(in_order, _bits_of_users(marks.values()), control_inputs=False)
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


def _bits_of_users(marks: Iterable[tuple[tf.Tensor, int]]) -> dict[tf.Operation, int]:
    """Returns, for each operation that takes a marked tensor, the bits of those that it takes."""
    bits: dict[tf.Operation, int] = {}
    for tensor, bit in marks:
        for user in tensor.consumers():
            bits[user] = bits.get(user, 0) | bit
    return bits


def _users(handle: tf.Tensor, forward: Set[tf.Operation]) -> set[tf.Operation]:
    reads = descendants([handle.op], is_inside=lambda op: op in forward and op.type in _READS)
    return {user for read in reads for user in consumers_of(read) if user in forward} - reads
