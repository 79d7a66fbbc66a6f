"""Early reduction: a large gradient is sent while the backward pass goes on.

The backward pass of a layer makes two gradients: that of its weights (dW), which is to be reduced,
and that of its input (dx), from which the pass goes on to the layer before. Nothing in a graph says
which comes first. And `Optimizer.compute_gradients` gates them (`GATE_OP`): `tf.tuple` lets no
gradient of a variable be used before all gradients exist. For two layers:

    loss = f(x W1 W2)

    without    device   | dx2 | dW2 | dW1 | gate
               wire                       | reduce dW2 | reduce dW1 |
               host                                    | update W2  | update W1 |

    with       device   | dW2 | dx2 | dW1 | gate
               wire           | reduce dW2 | reduce dW1 |
               host                       | update W2  | update W1 |

Three changes to the graph do this, all for large gradients only (at least the bucketing threshold):

  `without_gates`      takes the gradient as it is before the gate, and reduces that. The result of
                       the reduction waits for the gate instead, so no update runs earlier than the
                       user's graph allows.
  `make_first`         adds the control edge dW2 -> dx2.
  `wait_for_offers`    adds the control edge (dW2 is in its queue) -> dx2, for a direct exchange:
                       that op is short, and would otherwise start after the ops of the next layers.

Poseidon calls sending while the backward pass goes on "wait-free backpropagation" (Zhang et al.,
USENIX ATC 2017); PyTorch's DDP does it per bucket. `docs/performance.md` has measurements.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import tensorflow as tf

from tfdist.strategies.dialect import is_tensorflow_2
from tfdist.strategies.graph_walks import ancestors
from tfdist.strategies.private_tensorflow import add_control_inputs, is_in_loop_or_branch


def without_gates(tensor: tf.Tensor) -> tuple[tf.Tensor, list[tf.Operation]]:
    """Returns a value as it is before gates such as `tf.tuple`'s, and these gates.

    A tensor that takes the place of the value must wait for the gates.
    """
    gates: list[tf.Operation] = []
    while tensor.op.type == "Identity":
        source, waits_for = tensor.op.inputs[0], tensor.op.control_inputs
        if not all(gate.type == "NoOp" and source.op in gate.control_inputs for gate in waits_for):
            break
        if source.dtype != tensor.dtype:  # A reference variable: the identity reads it.
            break
        gates += waits_for
        source.set_shape(tensor.shape)  # The shape after the gate may be known better.
        tensor = source
    return tensor, gates


def behind_gates(tensor: tf.Tensor, gates: Sequence[tf.Operation]) -> tf.Tensor:
    """Returns a value that waits for gates; `without_gates` takes it from before them."""
    if not gates:
        return tensor
    with tf.control_dependencies([tensor.op, *gates]):
        gate = tf.no_op()
    with tf.control_dependencies([gate]):
        return tf.identity(tensor)


def make_first(gradients: Sequence[tf.Tensor]) -> None:
    """Makes the other ops of a layer's backward pass wait for the large gradient of its weights.

    The edges order ops that have no order, so the graph must be one whose steps run it as a whole,
    or a function of TensorFlow 2. Nothing is added in functions, loops and branches of a v1 graph.
    """
    if not gradients or tf.executing_eagerly():
        return
    producers = [_producer(gradient, through_sums=True) for gradient in gradients]
    layers = _layers(gradients[0].graph)
    for producer in producers:
        if not (is_outside(producer) or is_tensorflow_2()):
            continue
        layer = layers[producer]
        # Edges between two layers lead to the one that was made later, and the new edges are
        # inside one layer. So there is no cycle if there is none inside the layer.
        needed = ancestors([producer], control_inputs=True, is_inside=layer.__contains__)
        for sibling in _siblings(producer) & layer - needed:
            add_control_inputs(sibling, [producer])


def wait_for_offers(gradient: tf.Tensor, offers: Sequence[tf.Operation]) -> None:
    """Makes the ops that wait for `gradient` (see `make_first`) wait for `offers` as well.

    Args:
      gradient: The tensor that is offered; the offers depend on nothing else. Nothing waits where
        it is a sum over micro-batches: the backward pass of the other ones runs without offers.
      offers: Short ops on the host. Ops on another device than a CPU do not wait for the host.
    """
    producer = _producer(gradient)
    for sibling in _siblings(producer):
        if producer in sibling.control_inputs and "CPU" in sibling.device:
            add_control_inputs(sibling, offers)


def is_outside(operation: tf.Operation) -> bool:
    """Returns whether an op is outside functions, loops and branches."""
    in_function = getattr(operation.graph, "outer_graph", None) is not None
    return not in_function and not is_in_loop_or_branch(operation)


def _producer(tensor: tf.Tensor, *, through_sums: bool = False) -> tf.Operation:
    """Returns the op that computes a tensor's values; reshapes and casts of them are skipped.

    So are, if asked for, the sum with earlier micro-batches, and factors.
    """
    op = tensor.op
    while _only_reshapes_or_casts(op) or (through_sums and _only_sums_or_scales(op)):
        op = op.inputs[0].op
    return op


def _only_sums_or_scales(op: tf.Operation) -> bool:
    """Returns whether an op adds a variable's value to its first input, or multiplies by a scalar.

    This is how the micro-batches of a step are added up, and weighted.
    """
    if op.type == "AddV2":
        return bool(op.inputs[1].op.type == "ReadVariableOp")
    return op.type in ("Mul", "MulNoNan") and op.inputs[1].shape.rank == 0


def _only_reshapes_or_casts(op: tf.Operation) -> bool:
    """Returns whether an op depends on its first input alone, and keeps its values."""
    if op.control_inputs:
        return False
    is_fixed_reshape = op.type == "Reshape" and op.inputs[1].op.type == "Const"
    return is_fixed_reshape or op.type in ("Cast", "Identity")


def _siblings(producer: tf.Operation) -> set[tf.Operation]:
    return {user for value in producer.inputs for user in value.consumers()} - {producer}


def _layers(graph: tf.Graph) -> dict[tf.Operation, set[tf.Operation]]:
    """Returns, for each op, the ops that were made in a row with it in one name scope.

    The ops of one layer's backward pass are made so.
    """
    layers: dict[tf.Operation, set[tf.Operation]] = {}
    for _, run in itertools.groupby(graph.get_operations(), key=_scope):
        layer = set(run)
        layers |= dict.fromkeys(layer, layer)
    return layers


def _scope(op: tf.Operation) -> str:
    return op.name.rpartition("/")[0]
