"""Finds variables that a call of a session may read and write in either order."""

from collections.abc import Iterable, Iterator
from itertools import combinations

import tensorflow as tf

from tfdist.strategies.graph_walks import ancestors

_PASSES_ON = ("Enter", "Identity", "Switch")
_READS = ("ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VarIsInitializedOp")


def unordered_uses(fetched: Iterable[tf.Operation]) -> list[tuple[str, str, str]]:
    """Returns the variable's name and the two operations, for each pair without an order.

    What the functions of a loop or a branch do is not seen: they count as one use that may write.
    The global step is left out: hooks read it beside its update.
    """
    uses: dict[str, list[tf.Operation]] = {}
    for op in ancestors(fetched, control_inputs=True):
        for handle in _handles(op):
            uses.setdefault(handle.name, []).append(op)
    uses.pop("global_step", None)
    return [
        (name, one.name, other.name)
        for name, ops in uses.items()
        for one, other in combinations(ops, 2)
        if not (one.type in _READS and other.type in _READS)
        and one not in ancestors([other], control_inputs=True)
        and other not in ancestors([one], control_inputs=True)
    ]


def _handles(op: tf.Operation) -> Iterator[tf.Operation]:
    """Yields the variables that an operation reads or writes."""
    if op.type in _PASSES_ON:
        return
    for tensor in op.inputs:
        source = tensor.op
        while source.type in _PASSES_ON:
            source = source.inputs[0].op
        if source.type == "VarHandleOp":
            yield source
