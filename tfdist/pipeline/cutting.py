"""Cuts a traced forward pass into a forward and a backward function for each stage.

The gradients of each stage are taken in the graph that the forward pass was traced into, from the
gradients of what the stage hands on. What a backward function needs of the forward is what the
stage keeps for each micro-batch: its activations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.pipeline.regions import (
    Slice,
    has_effect,
    is_stateful,
    line_of,
    slice_graph,
)
from tfdist.strategies.private_tensorflow import replace_input

_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
_BEHIND_CALL = "behind_call"  # What the identities' names begin with.


@dataclass(frozen=True, kw_only=True)
class Traced:
    """A forward pass in a graph, with what is known about it.

    Attributes:
      graph: The graph.
      arguments: The placeholders of one micro-batch.
      outputs: What the forward pass returned, flat; the loss is not among them.
      loss: Scalar to be minimised; None in inference.
      stage_of: Stage of each operation by its name; see `regions.stages_of_operations`.
      stage_names: The stages' names.
      trained: The trainable variable behind each handle, by the handle's name.
      written: Names of the handles of variables that the forward pass may change.
      effects: Operations that have to run although nobody uses what they give.
      refuse_outside: Makes the error for an operation that is needed and in no stage.
    """

    graph: tf.Graph
    arguments: tuple[tf.Tensor, ...]
    outputs: tuple[tf.Tensor, ...]
    loss: tf.Tensor | None
    stage_of: Mapping[str, int | None]
    stage_names: tuple[str, ...]
    trained: Mapping[str, tf.Variable]
    written: frozenset[str]
    effects: tuple[tf.Operation, ...]
    refuse_outside: Callable[[tf.Operation], Exception]


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


@dataclass(frozen=True, kw_only=True)
class Gradients:
    """A stage's gradients in the traced graph.

    Attributes:
      arriving: Placeholder for the gradient of each tensor that the stage hands on, by its name.
      of_inputs: (input, its gradient) for what earlier stages have computed.
      of_handles: Gradient of each trained variable that the stage uses, by its handle's name.
      operations: Names of the operations that compute them.
    """

    arriving: Mapping[str, tf.Tensor]
    of_inputs: tuple[tuple[tf.Tensor, tf.Tensor], ...]
    of_handles: Mapping[str, Any]
    operations: frozenset[str]


def add_gradients(traced: Traced) -> tuple[Gradients | None, ...]:
    """Adds each stage's gradients to the graph, from the last stage to the first.

    Must be called while the graph is under construction. Without a loss there are none.

    Raises:
      ValueError: If an operation that is needed is outside all blocks.
    """
    if traced.loss is not None:
        _add_identities(traced)
        traced = _with_added(traced)
    forward = _slice_forward(traced)
    results: list[Gradients | None] = [None] * len(forward)
    if traced.loss is None:
        return tuple(results)
    has_gradient: set[str] = set()
    for stage in reversed(range(len(forward))):
        handed_on = _handed_on(traced, [one.inputs for one in forward], stage)
        found = _gradients_of_stage(
            traced, stage, forward[stage], [t for t in handed_on if t.name in has_gradient]
        )
        if found is not None:
            has_gradient.update(tensor.name for tensor, _ in found.of_inputs)
        results[stage] = found
    return tuple(results)


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
    traced = _with_added(traced, gradients)
    backward = [
        None if own is None else _slice_backward(traced, stage, own, recomputation)
        for stage, own in enumerate(gradients)
    ]
    kept = [_kept(traced, *both) for both in zip(gradients, backward, strict=True)]
    # Only now, since the gradient of a loop or of a function adds outputs to its operation.
    forward = _slice_forward(traced, kept)
    needed = [(*one.inputs, *more) for one, more in zip(forward, kept, strict=True)]
    source = _Source(traced.graph)
    stages = []
    for stage, name in enumerate(traced.stage_names):
        own, back = gradients[stage], backward[stage]
        outputs = {t.name: t for t in _results(traced) if _home(traced, t) == stage}
        outputs.update({t.name: t for t in _handed_on(traced, needed, stage)})
        outputs.update({t.name: t for t in kept[stage] if _home(traced, t, stage) == stage})
        computed = [t for t in outputs.values() if not _is_given(traced, t.op)]
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


def _add_identities(traced: Traced) -> None:
    """Puts an identity behind each call of a function whose results another stage uses.

    `tf.gradients` goes on through a call where it is told to stop, but it stops at an identity.
    """
    for op in traced.graph.get_operations():
        home = traced.stage_of.get(op.name)
        if home is None or op.type not in _CALLS:
            continue
        for tensor in op.outputs:
            elsewhere = [
                user
                for user in tensor.consumers()
                if traced.stage_of.get(user.name) not in (None, home)
            ]
            if elsewhere:
                behind = tf.identity(tensor, name=_BEHIND_CALL)
                for user in elsewhere:
                    replace_input(user, tensor, behind)


def _with_added(traced: Traced, gradients: Sequence[Gradients | None] = ()) -> Traced:
    """Gives the operations that `add_gradients` has added their stages.

    A stage's forward may need some of those that compute gradients: the gradient of a loop lets
    it fill lists that are made among them.
    """
    stage_of = dict(traced.stage_of)
    for op in traced.graph.get_operations():
        if op.name not in stage_of and op.name.startswith(_BEHIND_CALL):
            stage_of[op.name] = stage_of[op.inputs[0].op.name]
    for stage, own in enumerate(gradients):
        stage_of.update(dict.fromkeys(own.operations if own else (), stage))
    return replace(traced, stage_of=stage_of)


def _slice_forward(traced: Traced, kept: Sequence[Sequence[tf.Tensor]] = ()) -> list[Slice]:
    """Finds out what each stage's forward has to compute, from the last stage to the first.

    Args:
      traced: The forward pass.
      kept: What each stage's backward takes of the forward pass.
    """
    wanted: list[list[Any]] = [[] for _ in traced.stage_names]
    for tensor in _results(traced):
        wanted[_home(traced, tensor)].append(tensor)
    for op in traced.effects:
        _check_block(traced, op)
        wanted[traced.stage_of[op.name] or 0].append(op)
    for stage, tensors in enumerate(kept):
        for tensor in tensors:
            wanted[_home(traced, tensor, stage)].append(tensor)
    slices: list[Slice] = []
    for stage in reversed(range(len(wanted))):
        found = slice_graph(wanted[stage], partial(_is_in_forward, traced, stage))
        for tensor in found.inputs:
            if not _is_given(traced, tensor.op):
                wanted[_home(traced, tensor)].append(tensor)
        slices.insert(0, found)
    return slices


def _kept(
    traced: Traced, gradients: Gradients | None, backward: Slice | None
) -> tuple[tf.Tensor, ...]:
    """What a backward takes of the forward pass: of its own stage's, and of those before."""
    if gradients is None or backward is None:
        return ()
    arriving = _names(list(gradients.arriving.values()))
    return tuple(
        t for t in backward.inputs if t.name not in arriving and not _is_given(traced, t.op)
    )


def _results(traced: Traced) -> list[tf.Tensor]:
    return [*traced.outputs, *([] if traced.loss is None else [traced.loss])]


def _home(traced: Traced, tensor: tf.Tensor, default: int = 0) -> int:
    """The stage that computes a tensor; the default one has what any stage may have."""
    _check_block(traced, tensor.op)
    home = traced.stage_of[tensor.op.name]
    return default if home is None else home


def _check_block(traced: Traced, op: tf.Operation) -> None:
    if op.name not in traced.stage_of:
        raise traced.refuse_outside(op)


def _is_in_forward(traced: Traced, stage: int, op: tf.Operation) -> bool:
    _check_block(traced, op)
    home = traced.stage_of[op.name]
    return (home is None or home == stage) and not _is_given(traced, op)


def _is_given(traced: Traced, op: tf.Operation) -> bool:
    """Says whether what an operation gives comes from outside of all stages.

    Arguments and handles do, and what is read of a variable that the forward pass does not change:
    it is read once for all micro-batches.
    """
    if op.type in ("Placeholder", "VarHandleOp") or any(op is t.op for t in traced.arguments):
        return True
    return op.type == "ReadVariableOp" and _is_fixed(traced, op.inputs[0])


def _is_fixed(traced: Traced, handle: tf.Tensor) -> bool:
    return handle.name not in traced.written


def _handed_on(
    traced: Traced, needed: Sequence[Sequence[tf.Tensor]], stage: int
) -> list[tf.Tensor]:
    """What a stage computes and later ones use, of what each stage needs."""
    found = {
        tensor.name: tensor
        for of_later in needed[stage + 1 :]
        for tensor in of_later
        if not _is_given(traced, tensor.op) and traced.stage_of[tensor.op.name] == stage
    }
    return list(found.values())


def _gradients_of_stage(
    traced: Traced, stage: int, forward: Slice, handed_on: Sequence[tf.Tensor]
) -> Gradients | None:
    arriving = {
        tensor.name: v1.placeholder(tensor.dtype, tensor.shape, name="arriving")
        for tensor in handed_on
    }
    ys, grad_ys = list(handed_on), list(arriving.values())
    if traced.loss is not None and _home(traced, traced.loss) == stage:
        ys.append(traced.loss)
        grad_ys.append(tf.ones_like(traced.loss))
    inputs = [
        tensor
        for tensor in forward.inputs
        if not _is_given(traced, tensor.op) and _has_gradient(tensor)
    ]
    handles = _trained_handles(traced, forward)
    if not ys or not (inputs or handles):
        return None
    before = {op.name for op in traced.graph.get_operations()}
    found = tf.gradients(
        ys, [*inputs, *handles.values()], grad_ys, stop_gradients=inputs, name="backward"
    )
    added = frozenset(op.name for op in traced.graph.get_operations() if op.name not in before)
    of_inputs = zip(inputs, found, strict=False)
    of_handles = zip(handles, found[len(inputs) :], strict=True)
    return Gradients(
        arriving=arriving,
        of_inputs=tuple((t, tf.convert_to_tensor(g)) for t, g in of_inputs if g is not None),
        of_handles={name: g for name, g in of_handles if g is not None},
        operations=added,
    )


def _has_gradient(tensor: tf.Tensor) -> bool:
    """Says whether a tensor that a stage takes from another one can have a gradient."""
    if tensor.dtype == tf.variant:
        raise ValueError(
            f"a list of tensors (a tf.TensorArray, or rows of different lengths) goes from one "
            f"stage to another: what {tensor.op.type} gives at {line_of(tensor.op)}. In training "
            "stages hand on tensors only. Stack it in the block that makes it."
        )
    return bool(tensor.dtype.is_floating or tensor.dtype.is_complex)


def _trained_handles(traced: Traced, forward: Slice) -> dict[str, tf.Tensor]:
    """Handles of the trainable variables that a stage uses."""
    handles = {}
    for op in forward.operations:
        handles.update({t.name: t for t in op.inputs if t.dtype == tf.resource})
    for tensor in forward.inputs:
        if tensor.op.type == "ReadVariableOp":
            handles[tensor.op.inputs[0].name] = tensor.op.inputs[0]
    return {name: handle for name, handle in handles.items() if name in traced.trained}


def _slice_backward(traced: Traced, stage: int, gradients: Gradients, recomputation: bool) -> Slice:
    targets = [gradient for _, gradient in gradients.of_inputs]
    for gradient in gradients.of_handles.values():
        is_sparse = isinstance(gradient, tf.IndexedSlices)
        targets += [gradient.values, gradient.indices] if is_sparse else [gradient]

    def is_inside(op: tf.Operation) -> bool:
        if op.name in gradients.operations or op.type == "Const":
            return True
        home = traced.stage_of.get(op.name)
        if home not in (stage, None) or is_stateful(op) or _is_given(traced, op):
            return False
        return recomputation or home is None or _is_copy_of_given(traced, op)

    return slice_graph(targets, is_inside)


def _is_copy_of_given(traced: Traced, op: tf.Operation) -> bool:
    """Says whether an operation only copies a weight, perhaps with fewer bits."""
    return op.type in ("Cast", "Identity") and _is_given(traced, op.inputs[0].op)


def _make_backward(
    traced: Traced, source: _Source, stage: int, gradients: Gradients, backward: Slice
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


def _is_straight(node: Any) -> bool:
    calls = any(v.HasField("func") or v.list.func for v in node.attr.values())
    return not (node.device or calls or node.op in ("Switch", "RefSwitch", "Enter", "RefEnter"))


class _Source:
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


def effects_of(operations: Sequence[tf.Operation]) -> tuple[tf.Operation, ...]:
    """Returns the operations that a tf.function would run although nobody uses what they give."""
    return tuple(op for op in operations if has_effect(op))
