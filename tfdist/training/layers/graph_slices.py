"""Parts of a graph: the operations between some tensors, and which of them may be computed again.

Pipelines cut a forward pass into the pieces of stages with these functions, and `recompute` copies
a region of one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.strategies.graph_walks import sources_of, walk

# The name of an identity whose tensor is kept for the backward pass.
_KEPT = "kept_for_backward"

# The most operations between a draw and the mask that is made of it.
_MOST_BEHIND_DRAW = 16


@dataclass(frozen=True, kw_only=True)
class Slice:
    """A part of a graph: the operations that compute some tensors."""

    operations: tuple[tf.Operation, ...]  # The operations, in no particular order.
    # The tensors that they take from outside the part, in the order of first use.
    inputs: tuple[tf.Tensor, ...]


def slice_graph(
    targets: Iterable[tf.Tensor | tf.Operation], is_inside: Callable[[tf.Operation], bool]
) -> Slice:
    """Returns the part of a graph that some targets need: tensors, and operations that must run.

    The walk goes back from the targets along data and control edges, and stops at operations
    outside the part. A target operation is part of it in any case.
    """
    inputs: dict[str, tf.Tensor] = {}

    def sources(op: tf.Operation) -> Iterator[tf.Operation]:
        inputs.update({t.name: t for t in op.inputs if not is_inside(t.op)})
        return filter(is_inside, sources_of(op, control_inputs=True))

    starts = []
    for target in targets:
        if isinstance(target, tf.Operation) or is_inside(target.op):
            starts.append(target if isinstance(target, tf.Operation) else target.op)
        else:
            inputs[target.name] = target
    return Slice(operations=tuple(walk(starts, sources)), inputs=tuple(inputs.values()))


def copy_nodes(nodes: Sequence[Any], definition: v1.GraphDef, *, keep_devices: bool) -> None:
    """Adds nodes to a definition, without colocation and without control edges from others.

    With `keep_devices` a copy is on the device of the node.
    """
    names = {node.name for node in nodes}
    for original in nodes:
        node = definition.node.add()
        node.CopyFrom(original)
        if not keep_devices:
            node.device = ""
        node.attr.pop("_class", None)
        kept = [
            source
            for source in node.input
            if not source.startswith("^") or source.removeprefix("^") in names
        ]
        del node.input[:]
        node.input.extend(kept)


def is_stateful(op: tf.Operation) -> bool:
    """Returns whether an operation has state: a second run may differ, or change something."""
    return bool(op.op_def.is_stateful)


def keep_for_backward(tensor: tf.Tensor) -> tf.Tensor:
    """Returns a tensor that is kept where the operations around it are computed again."""
    return tf.identity(tensor, name=_KEPT)


def can_repeat(op: tf.Operation) -> bool:
    """Returns whether the backward pass may compute an operation of the forward pass again.

    It keeps the results of stateful operations, such as random draws and reads of variables. Of a
    draw that only decides (dropout's) it keeps the decision, which takes a quarter of the memory.
    """
    is_kept = op.name.rpartition("/")[2].startswith(_KEPT)
    if is_stateful(op) or is_kept or op.type == "Placeholder":  # What a function captures.
        return False
    return not (all(t.dtype == tf.bool for t in op.outputs) and _is_made_of_draws(op))


def _is_made_of_draws(op: tf.Operation) -> bool:
    """Returns whether an operation depends on random draws and constants alone."""
    waiting, num_seen, has_draw = [op], 0, False
    while waiting:
        for tensor in waiting.pop().inputs:
            source = tensor.op
            if is_stateful(source) and "seed" in source.node_def.attr:
                has_draw = True
            elif source.type != "Const":
                num_seen += 1
                if is_stateful(source) or not source.inputs or num_seen > _MOST_BEHIND_DRAW:
                    return False
                waiting.append(source)
    return has_draw
