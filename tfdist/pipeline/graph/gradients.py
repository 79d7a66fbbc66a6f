"""Gradients of each stage in the graph of the forward pass, and sums of gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.pipeline.graph.op_stages import Traced, line_of, read_of_weight
from tfdist.strategies.private_tensorflow import replace_input
from tfdist.strategies.reductions.slices import at_least_float32, on_values, weighted
from tfdist.training.layers.graph_slices import Slice

_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
_BEHIND_CALL = "behind_call"  # Prefix of the identities' names.


@dataclass(frozen=True, kw_only=True)
class Gradients:
    """A stage's gradients in the traced graph."""

    # Placeholder for the gradient of each tensor that the stage hands on, by its name.
    arriving: Mapping[str, tf.Tensor]
    # (input, its gradient) for each input that an earlier stage computes.
    of_inputs: tuple[tuple[tf.Tensor, tf.Tensor], ...]
    # Gradient of each trained variable that the stage uses, by its handle's name.
    of_handles: Mapping[str, Any]
    operations: frozenset[str]  # Names of the operations that compute them.


def add_gradients(traced: Traced) -> tuple[Gradients | None, ...]:
    """Adds each stage's gradients to the graph, from the last stage to the first.

    Must be called while the graph is under construction.

    Returns:
      For each stage its gradients; None without a loss, and for a stage that has no gradient to
      compute.

    Raises:
      ValueError: If an operation that is needed is outside all blocks, or a list of tensors goes
        from one stage to another.
    """
    if traced.loss is not None:
        _add_identities(traced)
        traced = with_added(traced)
    forward = traced.slice_forward()
    results: list[Gradients | None] = [None] * len(forward)
    if traced.loss is None:
        return tuple(results)
    has_gradient: set[str] = set()
    for stage in reversed(range(len(forward))):
        handed_on = traced.handed_on([op.inputs for op in forward], stage)
        found = _gradients_of_stage(
            traced, stage, forward[stage], [t for t in handed_on if t.name in has_gradient]
        )
        if found is not None:
            has_gradient.update(tensor.name for tensor, _ in found.of_inputs)
        results[stage] = found
    return tuple(results)


def with_added(traced: Traced, gradients: Sequence[Gradients | None] = ()) -> Traced:
    """Assigns stages to the operations added by `add_gradients`.

    A stage's forward may need some of the operations that compute gradients: for the gradient of a
    loop, the loop fills lists that are created by these operations.
    """
    stage_of = dict(traced.stage_of)
    for op in traced.graph.get_operations():
        if op.name not in stage_of and op.name.startswith(_BEHIND_CALL):
            stage_of[op.name] = stage_of[op.inputs[0].op.name]
    for stage, own in enumerate(gradients):
        stage_of.update(dict.fromkeys(own.operations if own else (), stage))
    return replace(traced, stage_of=stage_of)


def _add_identities(traced: Traced) -> None:
    """Inserts an identity after each function call with results that another stage uses.

    `tf.gradients` does not stop at the results of a call, even if `stop_gradients` lists them. It
    stops at an identity.
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


def _gradients_of_stage(
    traced: Traced, stage: int, forward: Slice, handed_on: Sequence[tf.Tensor]
) -> Gradients | None:
    arriving = {
        # As the tensor, for instance [micro_batch, ...].
        tensor.name: v1.placeholder(tensor.dtype, tensor.shape, name="arriving")
        for tensor in handed_on
    }
    ys, grad_ys = list(handed_on), list(arriving.values())
    if traced.loss is not None and traced.home(traced.loss) == stage:
        ys.append(traced.loss)
        grad_ys.append(tf.ones_like(traced.loss))  # []
    inputs = [
        tensor
        for tensor in forward.inputs
        if not traced.is_given(tensor.op) and _has_gradient(tensor)
    ]
    handles = _trained_handles(traced, forward)
    if not ys or not (inputs or handles):
        return None
    before = {op.name for op in traced.graph.get_operations()}
    n = len(inputs)
    # Each gradient has the shape of its input or variable; a sparse one is tf.IndexedSlices.
    found = tf.gradients(
        ys, [*inputs, *handles.values()], grad_ys, stop_gradients=inputs, name="backward"
    )
    found[n:] = [None if g is None else _to_add(g, traced.weight) for g in found[n:]]
    added = frozenset(op.name for op in traced.graph.get_operations() if op.name not in before)
    of_inputs = zip(inputs, found[:n], strict=True)
    of_handles = zip(handles, found[n:], strict=True)
    return Gradients(
        arriving=arriving,
        of_inputs=tuple((t, tf.convert_to_tensor(g)) for t, g in of_inputs if g is not None),
        of_handles={name: g for name, g in of_handles if g is not None},
        operations=added,
    )


def _has_gradient(tensor: tf.Tensor) -> bool:
    """Returns whether a tensor of another stage can have a gradient; refuses a list of tensors."""
    if tensor.dtype == tf.variant:
        raise ValueError(
            f"a list of tensors (a tf.TensorArray, or rows of different lengths) goes from one "
            f"stage to another: what {tensor.op.type} gives at {line_of(tensor.op)}. In training "
            "stages hand on tensors only. Stack it in the block that makes it."
        )
    return bool(tensor.dtype.is_floating or tensor.dtype.is_complex)


def _trained_handles(traced: Traced, forward: Slice) -> dict[str, tf.Tensor]:
    """Returns the handles of the trainable variables that a stage uses, by name."""
    handles = {}
    for op in forward.operations:
        handles.update({t.name: t for t in op.inputs if t.dtype == tf.resource})
    for tensor in forward.inputs:
        read = read_of_weight(tensor.op)
        if read is not None:
            handles[read.inputs[0].name] = read.inputs[0]
    return {name: handle for name, handle in handles.items() if name in traced.trained}


def _to_add(gradient: Any, weight: tf.Tensor | None) -> Any:
    """Returns a variable's gradient as it is added up: times the weight, if there is one.

    It is 0 for a weight of 0, also where the gradient is NaN. Half-precision gradients become
    float32, since their sums lose small ones, or overflow.
    """
    return on_values(at_least_float32, gradient) if weight is None else weighted(gradient, weight)


def added(parts: Sequence[Any]) -> Any:
    """Returns the sum of tensors and `tf.IndexedSlices` of one shape.

    The sum of `tf.IndexedSlices` only is `tf.IndexedSlices` with all their rows; any other sum is a
    tensor.
    """
    dense = [part for part in parts if not isinstance(part, tf.IndexedSlices)]
    sparse = [part for part in parts if isinstance(part, tf.IndexedSlices)]
    if not sparse:
        return dense[0] if len(dense) == 1 else tf.add_n(dense)
    rows = tf.concat([part.values for part in sparse], 0)  # [rows of all parts, ...]
    indices = tf.concat([part.indices for part in sparse], 0)  # [rows of all parts]
    if not dense:
        return tf.IndexedSlices(rows, indices, sparse[0].dense_shape)
    # The variable's shape.
    return tf.tensor_scatter_nd_add(added(dense), indices[:, None], rows)
