"""Cuts a traced forward pass into a forward and a backward function for each stage.

The gradients of each stage are taken in the graph that the forward pass was traced into, from the
gradients of what the stage hands on. What a backward function needs of the forward is what the
stage keeps for each micro-batch: its activations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import tensorflow as tf

from tfdist.pipeline.gradients import Gradients, with_added
from tfdist.pipeline.pieces import Piece, PieceSource
from tfdist.pipeline.regions import Slice, is_stateful, slice_graph
from tfdist.pipeline.traced import Traced


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
class Stage:
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
) -> tuple[Stage, ...]:
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
            Stage(
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
