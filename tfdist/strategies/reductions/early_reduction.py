"""Large gradients leave before the backward pass goes on.

The backward pass of a layer makes the gradient of its weights, and that of its input, with which
the pass goes on to the layer before. Nothing in a graph says which of them comes first, and
`Optimizer.compute_gradients` lets neither be used before both exist (`GATE_OP`). So the gradient of
the weights, which could travel while the rest is computed, is often made or sent late. Here it is
made first and sent at once; what comes back is gated.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import tensorflow as tf

from tfdist.strategies.private_tensorflow import add_control_inputs, is_in_loop_or_branch


def without_gates(tensor: tf.Tensor) -> tuple[tf.Tensor, list[tf.Operation]]:
    """Returns a value as it is before gates such as `tf.tuple`'s, and these gates.

    What is made of the value, and takes its place, has to wait for the gates.
    """
    gates: list[tf.Operation] = []
    while tensor.op.type == "Identity":
        source, waits_for = tensor.op.inputs[0], tensor.op.control_inputs
        if not all(gate.type == "NoOp" and source.op in gate.control_inputs for gate in waits_for):
            break
        if source.dtype != tensor.dtype:  # A variable of the old kind: it is read here.
            break
        gates += waits_for
        source.set_shape(tensor.shape)  # What is gated may be known better.
        tensor = source
    return tensor, gates


def make_first(gradients: Sequence[tf.Tensor]) -> None:
    """Lets what the same layer's backward pass makes beside a gradient wait for it.

    Adds edges that order what has no order, so the graph must be one that steps run as a whole.
    Nothing is added in functions, loops and branches.

    Args:
      gradients: The large ones, on the device.
    """
    if not gradients:
        return
    makers = [_maker(gradient) for gradient in gradients]
    layers = _layers(gradients[0].graph)
    for maker in filter(is_outside, makers):
        layer = layers[maker]
        for sibling in _siblings(maker) & layer:
            # All other edges between two layers lead to the one that was made later, and these
            # edges are inside one: they make no cycle if there is none inside it.
            if not _needs(maker, sibling, layer):
                add_control_inputs(sibling, [maker])


def wait_for_leaving(gradient: tf.Tensor, offers: Sequence[tf.Operation]) -> None:
    """Lets what waits for a gradient to be made wait until it has been offered, too.

    Args:
      gradient: What is offered, and all that the offers need.
      offers: Ops on the host that end at once. What runs on another device than a CPU does not
        wait for the host.
    """
    maker = _maker(gradient)
    for sibling in _siblings(maker):
        if maker in sibling.control_inputs and "CPU" in sibling.device:
            add_control_inputs(sibling, offers)


def is_outside(operation: tf.Operation) -> bool:
    """Says whether an op is outside functions, loops and branches."""
    in_function = getattr(operation.graph, "outer_graph", None) is not None
    return not in_function and not is_in_loop_or_branch(operation)


def _maker(tensor: tf.Tensor) -> tf.Operation:
    """Returns the op that computes what a tensor holds, and all that the tensor needs."""
    op = tensor.op
    while _passes_on(op):
        op = op.inputs[0].op
    return op


def _passes_on(op: tf.Operation) -> bool:
    """Says whether an op needs its first input alone, and only changes its shape or dtype."""
    if op.control_inputs:
        return False
    is_fixed_reshape = op.type == "Reshape" and op.inputs[1].op.type == "Const"
    return is_fixed_reshape or op.type in ("Cast", "Identity")


def _siblings(maker: tf.Operation) -> set[tf.Operation]:
    """Returns what else uses the values that an op uses."""
    return {user for value in maker.inputs for user in value.consumers()} - {maker}


def _layers(graph: tf.Graph) -> dict[tf.Operation, set[tf.Operation]]:
    """Returns, for each op, those that were made with it in a row and in one name scope.

    What the backward pass of a layer makes is among these.
    """
    layers: dict[tf.Operation, set[tf.Operation]] = {}
    for _, run in itertools.groupby(graph.get_operations(), key=_scope):
        layer = set(run)
        layers |= dict.fromkeys(layer, layer)
    return layers


def _scope(op: tf.Operation) -> str:
    return op.name.rpartition("/")[0]


def _needs(op: tf.Operation, needed: tf.Operation, among: set[tf.Operation]) -> bool:
    """Says whether an op waits for another one, by way of some ops."""
    seen, waiting = {op}, [op]
    while waiting:
        one = waiting.pop()
        before = {*(value.op for value in one.inputs), *one.control_inputs} & among - seen
        seen |= before
        waiting += before
    return needed in seen
