"""Forward and backward functions of each stage, cut from a traced forward pass.

The gradients of each stage are computed in the graph of the traced forward pass, from the gradients
of the tensors that the stage hands on. The forward tensors that a backward function needs are the
stage's activations: the stage keeps them for each micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.pipeline.graph.gradients import Gradients, with_added
from tfdist.pipeline.graph.op_stages import Traced, behind_identities, is_cast_to_half
from tfdist.training.layers.graph_slices import (
    Slice,
    can_repeat,
    copy_nodes,
    is_stateful,
    slice_graph,
)

# Operations that take about as long as it takes to read what they give.
_CHEAP = frozenset(
    {
        *("Add", "AddV2", "BiasAdd", "Cast", "ExpandDims", "Identity", "Mul", "Neg", "RealDiv"),
        *("Reshape", "SelectV2", "Square", "Squeeze", "StopGradient", "Sub"),
    }
)


@dataclass(frozen=True, kw_only=True)
class Backward:
    """A stage's backward function."""

    # The function. It takes the kept tensors, the `arriving` gradients and one sum for each dense
    # gradient. It returns the gradients of `passed_on`, the sums with this micro-batch's gradients
    # added, then (values, indices) of each sparse gradient.
    piece: Piece
    # Placeholder for the gradient of each tensor that the stage hands on, by its name.
    arriving: Mapping[str, tf.Tensor]
    passed_on: tuple[tf.Tensor, ...]  # The stage's inputs with gradients that earlier stages need.
    dense: tuple[str, ...]  # Names of the handles with a gradient that is a tensor.
    # Shape and dtype of the sum of each dense gradient; the shape is the variable's.
    sums: tuple[tf.TensorSpec, ...]
    sparse: tuple[str, ...]  # Names of the handles with a gradient that is `tf.IndexedSlices`.


@dataclass(frozen=True, kw_only=True)
class StageFunctions:
    """The forward and backward function of a stage."""

    name: str
    # Takes weights, arguments and the tensors that earlier stages hand on. Returns the tensors that
    # the stage hands on, the model's outputs that it computes, and the tensors that its backward
    # needs.
    forward: Piece
    # None in inference, and if no variable of this stage or an earlier one is trained.
    backward: Backward | None
    # Size of the tensors that one micro-batch keeps between forward and backward; None if a shape
    # is not known before the run.
    activation_bytes: int | None


def make_stages(
    traced: Traced,
    gradients: Sequence[Gradients | None],
    *,
    recomputation: bool = False,
    progress: Callable[[], None] = lambda: None,
) -> tuple[StageFunctions, ...]:
    """Creates the functions of each stage from a forward pass and the result of `add_gradients`.

    With `recomputation` the backward function computes the forward's tensors again. It does not
    repeat stateful operations, such as random draws, since their results may differ. `progress` is
    called after each stage.
    """
    traced = with_added(traced, gradients)
    backward = [
        None if own is None else _slice_backward(traced, stage, own, recomputation)
        for stage, own in enumerate(gradients)
    ]
    kept = [_kept(traced, *both) for both in zip(gradients, backward, strict=True)]
    # After the backward slices: the gradient of a loop or a function adds outputs to its operation.
    forward = traced.slice_forward(kept)
    needed = [(*one.inputs, *more) for one, more in zip(forward, kept, strict=True)]
    source = PieceSource(traced.graph)
    stages = []
    for stage, name in enumerate(traced.stage_names):
        own, back = gradients[stage], backward[stage]
        outputs = {t.name: t for t in traced.results() if traced.home(t) == stage}
        outputs.update({t.name: t for t in traced.handed_on(needed, stage)})
        outputs.update({t.name: t for t in kept[stage] if traced.home(t, stage) == stage})
        computed = [t for t in outputs.values() if not traced.is_given(t.op)]
        stages.append(
            StageFunctions(
                name=name,
                forward=source.piece(f"forward_{stage}", forward[stage], computed),
                backward=None
                if own is None or back is None
                else _make_backward(traced, source, stage, own, back),
                activation_bytes=_num_bytes(kept[stage]),
            )
        )
        progress()
    return tuple(stages)


def _kept(
    traced: Traced, gradients: Gradients | None, backward: Slice | None
) -> tuple[tf.Tensor, ...]:
    """Returns the forward tensors that a backward needs, of its own stage and of earlier ones."""
    if gradients is None or backward is None:
        return ()
    arriving = _names(list(gradients.arriving.values()))
    return tuple(t for t in backward.inputs if t.name not in arriving and not traced.is_given(t.op))


def _slice_backward(traced: Traced, stage: int, gradients: Gradients, recomputation: bool) -> Slice:
    targets = [gradient for _, gradient in gradients.of_inputs]
    for gradient in gradients.of_handles.values():
        is_sparse = isinstance(gradient, tf.IndexedSlices)
        targets += [gradient.values, gradient.indices] if is_sparse else [gradient]

    def is_inside(op: tf.Operation) -> bool:
        if traced.is_given(op):
            return False
        if op.name in gradients.operations or op.type == "Const":
            return True
        home = traced.stage_of.get(op.name)
        if home not in (stage, None) or is_stateful(op):
            return False
        if home is None or _is_copy_of_given(traced, op):
            return True
        return recomputation and can_repeat(op)

    kept = {tensor.name for tensor in slice_graph(targets, is_inside).inputs}
    again = _computed_again(traced, stage, kept)
    return slice_graph(targets, lambda op: is_inside(op) or op.name in again)


def _computed_again(traced: Traced, stage: int, kept: Set[str]) -> set[str]:
    """Returns the cheap operations that a backward would keep although it has their inputs anyway.

    It computes them again instead of keeping their results: of GELU's five tensors it keeps two.
    """
    again: set[str] = set()

    def is_there(tensor: tf.Tensor) -> bool:
        op = tensor.op
        is_taken = tensor.name in kept or traced.is_given(op) or op.type == "Const"
        return is_taken or op.name in again

    for op in traced.graph.get_operations():  # Each comes after its inputs.
        is_cheap = op.type in _CHEAP and traced.stage_of.get(op.name) == stage and can_repeat(op)
        if is_cheap and all(map(is_there, op.inputs)):
            again.add(op.name)
    return again


def _is_copy_of_given(traced: Traced, op: tf.Operation) -> bool:
    """Returns whether an operation only copies or casts a given value, such as a weight."""
    return op.type in ("Cast", "Identity") and traced.is_given(op.inputs[0].op)


def _make_backward(
    traced: Traced, source: PieceSource, stage: int, gradients: Gradients, backward: Slice
) -> Backward:
    dense = {n: g for n, g in gradients.of_handles.items() if not isinstance(g, tf.IndexedSlices)}
    sparse = {n: g for n, g in gradients.of_handles.items() if isinstance(g, tf.IndexedSlices)}
    passed_on = tuple(tensor for tensor, _ in gradients.of_inputs)
    outputs = [gradient for _, gradient in gradients.of_inputs]
    outputs += dense.values()
    for slices in sparse.values():
        outputs += [slices.values, slices.indices]
    # A gradient may have been made by the arriving one alone: then nothing is computed.
    whole = replace(
        backward,
        inputs=(
            *backward.inputs,
            *(p for p in gradients.arriving.values() if p.name not in _names(backward.inputs)),
        ),
    )
    sums = [tf.TensorSpec(traced.trained[name].shape, g.dtype) for name, g in dense.items()]
    piece = source.piece(f"backward_{stage}", whole, outputs, sums, first_sum=len(passed_on))
    return Backward(
        piece=piece,
        arriving=gradients.arriving,
        passed_on=passed_on,
        dense=tuple(dense),
        sums=tuple(sums),
        sparse=tuple(sparse),
    )


def _names(tensors: Sequence[tf.Tensor]) -> set[str]:
    return {tensor.name for tensor in tensors}


def _num_bytes(tensors: Sequence[tf.Tensor]) -> int | None:
    sizes = [
        None if t.shape.num_elements() is None else t.shape.num_elements() * t.dtype.size
        for t in tensors
    ]
    return None if None in sizes else sum(size for size in sizes if size is not None)


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A function that computes some tensors of the traced graph from others."""

    # A `ConcreteFunction`. It takes the values of the inputs, and of the sums if there are any; it
    # returns a list of the outputs' values.
    function: Any
    inputs: tuple[tf.Tensor, ...]  # Tensors of the traced graph.
    outputs: tuple[tf.Tensor, ...]  # Tensors of the traced graph.

    @cached_property
    def is_straight(self) -> bool:
        """True if there is no loop, condition, call or operation with a device in the function."""
        return all(map(_is_straight, self.function.graph.as_graph_def().node))


def _is_straight(node: Any) -> bool:
    calls = any(v.HasField("func") or v.list.func for v in node.attr.values())
    return not (node.device or calls or node.op in ("Switch", "RefSwitch", "Enter", "RefEnter"))


class PieceSource:
    """The definition of a graph, from which functions are cut."""

    def __init__(self, graph: tf.Graph) -> None:
        whole = graph.as_graph_def(add_shapes=True)
        self._nodes = {node.name: node for node in whole.node}
        self._library = whole.library
        self._versions = whole.versions

    def piece(
        self,
        name: str,
        part: Slice,
        outputs: Sequence[tf.Tensor],
        sums: Sequence[tf.TensorSpec] = (),
        first_sum: int = 0,
    ) -> Piece:
        """Creates a function of a part of the graph, which returns the values of `outputs`.

        After the part's inputs it takes the `sums`: it adds the outputs from position `first_sum`
        on to them.
        """
        definition = self._definition(part)
        inputs = part.inputs
        num_inputs = len(inputs)

        def run(*values: tf.Tensor) -> list[tf.Tensor]:
            with tf.device(None):  # The device of the call counts, not of the creation.
                return compute(values)

        def compute(values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
            given = dict(zip((t.name for t in inputs), values, strict=False))
            computed = [t.name for t in outputs if t.name not in given]
            used = {n for node in definition.node for n in map(_tensor_name, node.input)}
            imported = tf.graph_util.import_graph_def(
                definition,
                input_map={n: value for n, value in given.items() if n in used},
                return_elements=computed,
                name="",
            )
            given.update(zip(computed, imported, strict=True))
            results = [given[t.name] for t in outputs]
            for position, total in enumerate(values[num_inputs:], first_sum):
                results[position] = total + results[position]
            return results

        run.__name__ = name
        specs = [tf.TensorSpec(t.shape, t.dtype) for t in inputs]
        specs += sums
        function = tf.function(
            run, autograph=False, experimental_attributes={"_noinline": True}
        ).get_concrete_function(*specs)
        return Piece(function=function, inputs=inputs, outputs=tuple(outputs))

    def _definition(self, part: Slice) -> v1.GraphDef:
        definition = v1.GraphDef(versions=self._versions, library=self._library)
        nodes = [self._nodes[op.name] for op in part.operations]
        copy_nodes(nodes, definition, keep_devices=False)
        place_of = {name: gather for op in part.operations for name, gather in _rows_in_half(op)}
        for node in definition.node:
            if node.name in place_of:
                node.attr["_class"].list.s.append(f"loc:@{place_of[node.name]}".encode())
        return definition


def _rows_in_half(op: tf.Operation) -> list[tuple[str, str]]:
    """Returns the operations between a gather and its cast to half precision, with the gather.

    They are to be where the gather is, on the variable's device: so half the bytes are copied.
    """
    source = behind_identities(op.inputs[0].op) if is_cast_to_half(op) else op
    if source.type != "ResourceGather":
        return []
    names = []
    while op is not source:
        names.append(op.name)
        op = op.inputs[0].op
    return [(name, source.name) for name in names]


def _tensor_name(written: str) -> str:
    """Returns the tensor's name for a node's input, which omits ":0" for output 0."""
    return written if ":" in written or written.startswith("^") else f"{written}:0"
