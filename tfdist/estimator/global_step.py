"""The global step: who increments it."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

_WRITES = frozenset(
    {
        "AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp",
        "Assign", "AssignAdd", "AssignSub",
    }
)  # fmt: skip


def create_global_step() -> tf.Variable:
    """Makes the int64 variable that counts steps, on the host.

    Every method of the Estimator calls this before the user's functions run.
    """
    return v1.train.create_global_step()


def is_incremented(graph: tf.Graph, global_step: tf.Variable) -> bool:
    """Says whether some op of the graph, or of a function in it, changes the global step.

    Its initialisation does not count.
    """
    handle = global_step.handle if hasattr(global_step, "handle") else global_step.op.outputs[0]
    for operation in handle.consumers():
        if operation.type in _WRITES and operation.name != global_step.initializer.name:
            return True
        position = [t is handle for t in operation.inputs].index(True)
        for function in _functions_of(operation):
            if _writes_argument(graph, function, position - _offset(operation)):
                return True
    # A loop's or branch's body that is being built captures the handle.
    current = v1.get_default_graph()
    if current is not graph:
        for outer, inner in getattr(current, "captures", []):
            if outer is handle and any(c.type in _WRITES for c in inner.consumers()):
                return True
    return False


def increment(global_step: tf.Variable, after: list[Any]) -> tf.Operation:
    """Adds one to the global step once the given ops have run, on the host."""
    with tf.control_dependencies(after), tf.device("/device:CPU:0"):
        return v1.assign_add(global_step, tf.constant(1, global_step.dtype)).op


def _functions_of(operation: tf.Operation) -> list[str]:
    names = []
    for attribute in operation.node_def.attr.values():
        if attribute.HasField("func"):
            names.append(attribute.func.name)
        names.extend(function.name for function in attribute.list.func)
    return names


def _offset(operation: tf.Operation) -> int:
    # The first input of a branch is its condition, which the branch's function does not get.
    return 1 if operation.type in ("If", "StatelessIf", "Case", "StatelessCase") else 0


def _writes_argument(graph: tf.Graph, name: str, position: int) -> bool:
    """Looks into a function for an assignment to its argument at `position`."""
    library = {f.signature.name: f for f in graph.as_graph_def().library.function}
    if name not in library:
        return False
    function = library[name]
    argument = function.signature.input_arg[position].name
    return any(
        node.op in _WRITES and node.input and node.input[0].split(":")[0] == argument
        for node in function.node_def
    )
