"""Walks over the operations of a graph: those that others depend on, and those computed from them.

A graph may have loops of TensorFlow 1, with edges that lead back. A walk visits an operation once;
`bits_behind` repeats where a loop makes it necessary. A walk stays in one graph: what the functions
of a `tf.while_loop` or `tf.cond` contain belongs to other graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, KeysView, Mapping

import tensorflow as tf

_Test = Callable[[tf.Operation], bool]


def walk(
    starts: Iterable[tf.Operation], next_of: Callable[[tf.Operation], Iterable[tf.Operation]]
) -> KeysView[tf.Operation]:
    """Returns the operations that can be reached: a set, in the order in which they are found.

    It has those to begin with. `next_of` returns the operations that follow one; it is called once
    for each. The walk goes on from the operation that was found last.
    """
    found = dict.fromkeys(starts)
    waiting = list(found)
    while waiting:
        for op in next_of(waiting.pop()):
            if op not in found:
                found[op] = None
                waiting.append(op)
    return found.keys()


def sources_of(op: tf.Operation, *, control_inputs: bool) -> list[tf.Operation]:
    """Returns the operations of an operation's inputs, and its control inputs if they count."""
    sources = [tensor.op for tensor in op.inputs]
    return [*sources, *op.control_inputs] if control_inputs else sources


def consumers_of(op: tf.Operation) -> list[tf.Operation]:
    """Returns the operations that take an output of an operation as an input."""
    return [user for tensor in op.outputs for user in tensor.consumers()]


def ancestors(
    ops: Iterable[tf.Operation], *, control_inputs: bool, is_inside: _Test | None = None
) -> KeysView[tf.Operation]:
    """Returns some operations and all that they depend on, by way of those inside only."""
    return walk(ops, lambda op: filter(is_inside, sources_of(op, control_inputs=control_inputs)))


def descendants(
    ops: Iterable[tf.Operation], *, is_inside: _Test | None = None
) -> KeysView[tf.Operation]:
    """Returns some operations and all that are computed from them, by way of those inside only."""
    return walk(ops, lambda op: filter(is_inside, consumers_of(op)))


def bits_behind(
    ops: Iterable[tf.Operation], own_bits: Mapping[tf.Operation, int], *, control_inputs: bool
) -> dict[tf.Operation, int]:
    """Returns the bits of each operation: its own, if any, and those of all that it depends on.

    The operations are in the order of creation, with all that they depend on.
    """
    sources = {op: sources_of(op, control_inputs=control_inputs) for op in ops}
    bits = {op: own_bits.get(op, 0) for op in sources}
    has_changed = True
    while has_changed:  # Two passes, and more with loops, with edges that lead back.
        has_changed = False
        for op, before in sources.items():
            mask = bits[op]
            for source in before:
                mask |= bits[source]
            if mask != bits[op]:
                bits[op] = mask
                has_changed = True
    return bits
