"""Forward and backward functions of each stage, cut from a traced forward pass.

The gradients of each stage are taken in the graph that the forward pass was traced into, from the
gradients of what the stage hands on. What a backward function needs of the forward is what the
stage keeps for each micro-batch: its activations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.pipeline.graph.gradients import Gradients, with_added
from tfdist.pipeline.graph.op_stages import Slice, Traced, is_stateful, slice_graph


@dataclass(frozen=True, kw_only=True)
class Backward:
    """A stage's backward function.

    Attributes:
      piece: Takes what the stage has kept, the `arriving` placeholders and one sum for each dense
        gradient; gives the gradients of `passed_on`, the sums with this micro-batch's gradients
        added, then (values, indices) of each sparse gradient.
      arriving: Placeholder for the gradient of each tensor that the stage hands on, by its name.
      passed_on: The stage's inputs whose gradients earlier stages need.
      dense: Names of the handles with a gradient that is a tensor.
      sums: Shape and dtype of each of their sums.
      sparse: Names of the handles with `tf.IndexedSlices`.
    """

    piece: Piece
    arriving: Mapping[str, tf.Tensor]
    passed_on: tuple[tf.Tensor, ...]
    dense: tuple[str, ...]
    sums: tuple[tf.TensorSpec, ...]
    sparse: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class StageFunctions:
    """A stage's functions.

    Attributes:
      name: Its name.
      forward: Takes weights, arguments and what earlier stages hand on; gives what it hands on, the
        model's outputs that it computes, and what its backward needs.
      backward: None in inference, and if nothing in this stage or before it is trained.
      activation_bytes: What a micro-batch keeps between forward and backward; None if a size is
        not known before it runs.
    """

    name: str
    forward: Piece
    backward: Backward | None
    activation_bytes: int | None


def make_stages(
    traced: Traced,
    gradients: Sequence[Gradients | None],
    *,
    recomputation: bool = False,
    progress: Callable[[], None] = lambda: None,
) -> tuple[StageFunctions, ...]:
    """Makes the functions of each stage.

    Args:
      traced: The forward pass.
      gradients: What `add_gradients` gave for it.
      recomputation: Whether backward computes anew what forward has computed, but for random
        draws and what else may come out differently.
      progress: Called after each stage.
    """
    traced = with_added(traced, gradients)
    backward = [
        None if own is None else _slice_backward(traced, stage, own, recomputation)
        for stage, own in enumerate(gradients)
    ]
    kept = [_kept(traced, *both) for both in zip(gradients, backward, strict=True)]
    # Only now, since the gradient of a loop or of a function adds outputs to its operation.
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
    """What a backward takes of the forward pass: of its own stage's, and of those before."""
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
        if op.name in gradients.operations or op.type == "Const":
            return True
        home = traced.stage_of.get(op.name)
        if home not in (stage, None) or is_stateful(op) or traced.is_given(op):
            return False
        return recomputation or home is None or _is_copy_of_given(traced, op)

    return slice_graph(targets, is_inside)


def _is_copy_of_given(traced: Traced, op: tf.Operation) -> bool:
    """Says whether an operation only copies a weight, perhaps with fewer bits."""
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
    """A function that computes some tensors of the traced graph from others.

    Attributes:
      function: A `ConcreteFunction`: takes the inputs' values; gives a list of the outputs' values.
      inputs: Tensors of the traced graph.
      outputs: Tensors of the traced graph.
    """

    function: Any
    inputs: tuple[tf.Tensor, ...]
    outputs: tuple[tf.Tensor, ...]

    @cached_property
    def is_straight(self) -> bool:
        """Whether it has neither loops nor conditions nor calls, nor an operation with a device."""
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
        """Makes a function of a part of the graph.

        Args:
          name: The function's name.
          part: Its operations and inputs.
          outputs: What it gives.
          sums: Sums that the function takes behind the inputs, and to which it adds outputs.
          first_sum: Position of the output that is added to the first sum; the rest follow.
        """
        definition = self._definition(part)
        inputs = part.inputs
        num_inputs = len(inputs)

        def run(*values: tf.Tensor) -> list[tf.Tensor]:
            with tf.device(None):  # Where the function is called, not where it is made.
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
        """Copies the part's nodes, free of devices and of ties to nodes elsewhere."""
        definition = v1.GraphDef(versions=self._versions, library=self._library)
        names = {op.name for op in part.operations}
        for op in part.operations:
            node = definition.node.add()
            node.CopyFrom(self._nodes[op.name])
            node.device = ""
            node.attr.pop("_class", None)
            kept = [
                one
                for one in node.input
                if not one.startswith("^") or one.removeprefix("^") in names
            ]
            del node.input[:]
            node.input.extend(kept)
        return definition


def _tensor_name(written: str) -> str:
    """Turns a node's input, in which output 0 is left out, into a tensor's name."""
    return written if ":" in written or written.startswith("^") else f"{written}:0"
