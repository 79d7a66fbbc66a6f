"""The global step: its increment, and the last step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.strategies.private_tensorflow import stop_limit_of

_WRITES = frozenset(
    {
        "AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp",
        "Assign", "AssignAdd", "AssignSub",
    }
)  # fmt: skip


def is_incremented(graph: tf.Graph, global_step: tf.Variable) -> bool:
    """Returns whether an op of the graph, or of a function in it, changes the global step.

    Its initialisation and a saver's restore ops do not count.
    """
    handle = handle_of(global_step)
    if _is_changed_in(graph, handle, global_step.initializer.name):
        return True
    # The body of a loop or branch that is being built captures the handle.
    current = v1.get_default_graph()
    captures = [] if current is graph else getattr(current, "captures", [])
    return any(_is_changed_in(current, inner) for outer, inner in captures if outer is handle)


def _is_changed_in(graph: tf.Graph, handle: tf.Tensor, initializer: str | None = None) -> bool:
    """Returns whether an op of a graph other than the initializer writes to a variable."""
    for operation, used in users_of(handle):
        if operation.type in _WRITES:
            if operation.name != initializer and not _is_restored(operation):
                return True
            continue
        functions = _functions_of(operation.node_def)
        if functions:
            library = {f.signature.name: f for f in graph.as_graph_def().library.function}
            position = [t is used for t in operation.inputs].index(True) - _offset(operation.type)
            if any(_writes_argument(library, function, position) for function in functions):
                return True
    return False


def handle_of(variable: tf.Variable) -> tf.Tensor:
    """Returns the tensor by which ops use a variable, of TensorFlow 1 or a resource variable."""
    return variable.handle if hasattr(variable, "handle") else variable.op.outputs[0]


def users_of(handle: tf.Tensor) -> Iterator[tuple[tf.Operation, tf.Tensor]]:
    """Yields the ops that use a handle, each with the tensor by which it does.

    A loop of TensorFlow 1 has its own tensor for the handle.
    """
    for operation in handle.consumers():
        if operation.type in ("Enter", "RefEnter"):
            yield from users_of(operation.outputs[0])
        else:
            yield operation, handle


def increment(global_step: tf.Variable, after: list[Any]) -> tf.Operation:
    """Adds one to the global step once the given ops have run, on the host."""
    with tf.control_dependencies(after), tf.device("/device:CPU:0"):
        return v1.assign_add(global_step, tf.constant(1, global_step.dtype)).op


def _is_restored(assignment: tf.Operation) -> bool:
    """Returns whether an assignment's value comes from a checkpoint."""
    source = assignment.inputs[1].op
    while source.type in ("Identity", "Reshape"):
        source = source.inputs[0].op
    return bool(source.type == "RestoreV2")


def _functions_of(node: Any) -> list[str]:
    names = []
    for attribute in node.attr.values():
        if attribute.HasField("func"):
            names.append(attribute.func.name)
        names.extend(function.name for function in attribute.list.func)
    return names


def _offset(op_type: str) -> int:
    # The first input of a branch is its condition, which the branch's function does not get.
    return 1 if op_type in ("If", "StatelessIf", "Case", "StatelessCase") else 0


def _writes_argument(library: Mapping[str, Any], name: str, position: int) -> bool:
    """Returns whether a function, or one that it calls, assigns to its argument at `position`."""
    if name not in library:
        return False
    function = library[name]
    argument = function.signature.input_arg[position].name
    for node in function.node_def:
        places = [i for i, one in enumerate(node.input) if one.split(":")[0] == argument]
        if node.op in _WRITES and places[:1] == [0]:
            return True
        for called in _functions_of(node):
            if any(_writes_argument(library, called, i - _offset(node.op)) for i in places):
                return True
    return False


# A limit of a training as (number of steps from the first one, global step); one of them is None.
StepLimit = tuple[int | None, int | None]


def last_step_of(limits: Iterable[StepLimit], first_step: int) -> int | None:
    """Returns the lowest global step at which one of the limits ends a training; None without any.

    The training begins at `first_step`. A pair of two None is no limit.
    """
    ends = [last if steps is None else first_step + steps for steps, last in limits]
    return min((end for end in ends if end is not None), default=None)


def is_last_call(
    session: v1.Session, global_step: tf.Variable, fetched: int, steps_per_call: int, last_step: int
) -> bool:
    """Returns whether the call just made has reached the last step.

    `fetched` is the global step from before or after the call's steps. If that does not decide it,
    the variable is read again.
    """
    may_be_last = fetched + steps_per_call >= last_step
    return may_be_last and int(session.run(global_step)) >= last_step


def limit_in_place_of(hook: v1.train.SessionRunHook, steps_per_call: int) -> StepLimit | None:
    """Returns the limit to use in place of TensorFlow's StopAtStepHook; None for other hooks.

    With several steps in a call that hook would stop one call too late where a call ends exactly
    at its step. Objects of its subclasses are used unchanged.
    """
    if steps_per_call > 1 and type(hook) is v1.train.StopAtStepHook:
        return stop_limit_of(hook)
    return None
