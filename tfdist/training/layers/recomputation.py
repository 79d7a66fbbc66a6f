"""Recomputation: a region of the forward pass, computed again for its gradient.

    forward                        backward
    -------                        --------
    x ----> region ----> y ------------------------> loss
    |         '- tensors freed                        |
    '-- kept ----> copy of region, after dy           |
                     '-> gradient ops <------ dy -----'
                              '-> dx, gradients of weights

The region's gradient is built for the original operations. Then these gradient ops and the forward
operations that they need are copied together, and only the copy runs: it takes the kept tensors
behind an identity that waits for dy, so that it cannot run early. Operations with state are not
copied: their results are kept. So random draws equal the forward pass's, and assignments
happen once. The function is called once, so variables may be made inside.

Trading compute for memory in this way follows Chen et al., "Training Deep Nets with Sublinear
Memory Cost", 2016.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.strategies.private_tensorflow import is_recorded_by_tape
from tfdist.training.layers.graph_slices import (
    can_repeat,
    copy_nodes,
    keep_for_backward,
    slice_graph,
)
from tfdist.training.layers.replica_groups import refusing_statistics_over_replicas


@dataclass(frozen=True, kw_only=True)
class _Region:
    """A region under construction: its graph, and how many that had before."""

    graph: tf.Graph
    first: int

    def names(self) -> frozenset[str]:
        """Returns the names of the region's operations so far."""
        return frozenset(op.name for op in self.graph.get_operations()[self.first :])


# The innermost region in which the running code makes operations.
_current_region: ContextVar[_Region | None] = ContextVar("current_region", default=None)


def recompute(function_or_layer: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function so that the backward pass computes its inner tensors again.

    Between forward and backward pass only its inputs, its outputs and its random draws are in
    memory. The gradients are those without `recompute`, up to rounding.

        hidden = recompute(encoder_layer)(hidden, mask)

    Works in the graph of a model_fn, of a `tf.function` and of a pipeline's stage, and inside
    another `recompute`. Only memory and time change.

    Args:
      function_or_layer: A function of tensors, or a layer of either Keras. It may make variables,
        draw random numbers and assign variables. Other operations with state, such as calls of a
        `tf.function` that reads variables, are kept with what they need. A batch norm over
        replicas is refused in it.

    Returns:
      A function with the same arguments and results. It raises a TypeError if the result has no
      tensor, and a RuntimeError where a `tf.GradientTape` records eager execution.
    """

    def recomputed(*args: Any, **kwargs: Any) -> Any:
        _refuse_symbols((args, kwargs))
        if tf.executing_eagerly():
            if is_recorded_by_tape():
                raise RuntimeError(
                    "recompute needs a graph, and a tape records eager execution. Call "
                    "it in a model_fn, in a tf.function or in a stage of a pipeline."
                )
            return function_or_layer(*args, **kwargs)  # No backward pass follows.
        graph = v1.get_default_graph()
        region = _Region(graph=graph, first=len(graph.get_operations()))
        args, kwargs = tf.nest.map_structure(  # Identities, at which the region begins.
            lambda one: tf.identity(one) if isinstance(one, tf.Tensor) else one, (args, kwargs)
        )
        token = _current_region.set(region)
        try:
            with refusing_statistics_over_replicas("a function of recompute"):
                returned = function_or_layer(*args, **kwargs)
        finally:
            _current_region.reset(token)
        flat = tf.nest.flatten(returned, expand_composites=True)
        if not any(tf.is_tensor(leaf) for leaf in flat):
            raise TypeError(
                f"{_name_of(function_or_layer)} returned {returned!r} and no tensor: recompute "
                "keeps what the function returns. Return the tensors that the model goes on with."
            )
        numbers = [i for i, one in enumerate(flat) if _has_gradient(one)]
        for i, tensor in zip(numbers, _end(region, [flat[i] for i in numbers]), strict=True):
            flat[i] = tensor
        return tf.nest.pack_sequence_as(returned, flat, expand_composites=True)

    return recomputed


def recomputation_checkpoint(tensor: tf.Tensor) -> tf.Tensor:
    """Keeps a tensor inside a function of `recompute`, or inside a recomputed pipeline stage.

    In a function of `recompute` it cuts the computation in two: the backward pass computes the part
    behind the tensor again, and only afterwards the part before it. Elsewhere it has no effect.

    Returns the value of the `tensor`, which the model goes on with.
    """
    if tf.executing_eagerly():
        return tensor
    region = _current_region.get()
    if region is not None and region.graph is v1.get_default_graph() and _has_gradient(tensor):
        [tensor] = _end(region, [tensor])
    return keep_for_backward(tensor)


def _end(region: _Region, outputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Returns the outputs of a region, with a gradient that computes the region again."""
    if not outputs:
        return []
    names = region.names()

    def is_repeated(op: tf.Operation) -> bool:
        return op.name in names and can_repeat(op)

    part = slice_graph(outputs, is_repeated)
    kept = [tensor for tensor in part.inputs if _has_gradient(tensor)]

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def end(*tensors: tf.Tensor) -> Any:
        def gradient(*arriving: tf.Tensor) -> list[Any]:
            return [*([None] * len(outputs)), *_gradients(outputs, kept, arriving, is_repeated)]

        return tuple(tf.identity(tensor) for tensor in tensors[: len(outputs)]), gradient

    return list(end(*outputs, *kept))


def _gradients(
    outputs: Sequence[tf.Tensor],
    kept: Sequence[tf.Tensor],
    arriving: Sequence[tf.Tensor],
    is_repeated: Callable[[tf.Operation], bool],
) -> list[Any]:
    """Returns the gradients of the kept tensors, given the `arriving` ones of the outputs.

    The forward tensors that they need are computed again, by a copy of the operations that
    `is_repeated` names.
    """
    graph = v1.get_default_graph()
    if outputs[0].graph is not graph:
        # The gradient of a function or a loop is in a graph of its own. It takes what it needs of
        # the forward pass from outside.
        forward = slice_graph(outputs, is_repeated)
        library = outputs[0].graph.as_graph_def().library
        copies = _copy(forward.operations, [*forward.inputs, *kept], outputs, arriving, library)
        inputs = [copies[tensor.name] for tensor in kept]
        found = tf.gradients(
            [copies[tensor.name] for tensor in outputs], inputs, arriving, stop_gradients=inputs
        )
        return _together(found) if any(one is not None for one in found) else found
    num_operations = len(graph.get_operations())
    found = tf.gradients(outputs, kept, arriving, stop_gradients=kept, name="for_copy")
    added = {op.name for op in graph.get_operations()[num_operations:]}
    targets = tf.nest.flatten(found, expand_composites=True)
    targets = [target for target in targets if target is not None]
    if not targets:
        return list(found)
    part = slice_graph(targets, lambda op: op.name in added or is_repeated(op))
    _refuse_messages(part.operations)
    copies = _copy(part.operations, part.inputs, targets, arriving)
    return _together(
        tf.nest.map_structure(
            lambda one: None if one is None else copies[one.name], found, expand_composites=True
        )
    )


def _together(gradients: Sequence[Any]) -> list[Any]:
    """Returns gradients none of which is there before all are.

    So the weights' gradients come before the region before this one is computed again; otherwise
    they would keep this region's tensors while all others are computed.
    """
    return list(v1.tuple(list(gradients)))


def _copy(
    operations: Sequence[tf.Operation],
    inputs: Sequence[tf.Tensor],
    outputs: Sequence[tf.Tensor],
    waits_for: Sequence[tf.Tensor],
    library: Any = None,
) -> dict[str, tf.Tensor]:
    """Copies operations into the current graph, where they wait for some tensors.

    Returns the copies of the inputs and outputs, by the originals' names.
    """
    given = {tensor.name: tensor for tensor in waits_for}
    with tf.control_dependencies(waits_for):
        copies = {t.name: given[t.name] if t.name in given else tf.identity(t) for t in inputs}
    definition = v1.GraphDef(library=library)
    copy_nodes([op.node_def for op in operations], definition, keep_devices=True)
    written = {name for node in definition.node for name in node.input}
    used = {n: t for n, t in copies.items() if n in written or n.removesuffix(":0") in written}
    computed = [tensor.name for tensor in outputs if tensor.name not in copies]
    imported = tf.graph_util.import_graph_def(
        definition, input_map=used, return_elements=computed, name="recomputed"
    )
    return {**copies, **dict(zip(computed, imported, strict=True))}


def _refuse_messages(operations: Sequence[tf.Operation]) -> None:
    for op in operations:
        if op.type.startswith(("Collective", "Horovod")):
            raise ValueError(
                f"the gradient of a function of recompute sends a message to other workers "
                f"({op.type} {op.name}). Leave the layer that combines values over workers out of "
                "the function."
            )


def _has_gradient(value: Any) -> bool:
    return tf.is_tensor(value) and (value.dtype.is_floating or value.dtype.is_complex)


def _refuse_symbols(arguments: Any) -> None:
    for value in tf.nest.flatten(arguments):
        if type(value).__name__ == "KerasTensor":
            raise TypeError(
                f"recompute got {value!r}, a symbol of a Keras model that is being put together. "
                "Call recompute in the `call` of a layer or model, or in a model_fn."
            )


def _name_of(function: Any) -> str:
    return str(getattr(function, "__name__", None) or getattr(function, "name", function))
