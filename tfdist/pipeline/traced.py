"""A forward pass in a graph, with what is known about it: whose each operation is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import tensorflow as tf

from tfdist.pipeline.regions import Slice, slice_graph


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

    def results(self) -> list[tf.Tensor]:
        return [*self.outputs, *([] if self.loss is None else [self.loss])]

    def home(self, tensor: tf.Tensor, default: int = 0) -> int:
        """The stage that computes a tensor; the default one has what any stage may have."""
        self.check_block(tensor.op)
        home = self.stage_of[tensor.op.name]
        return default if home is None else home

    def check_block(self, op: tf.Operation) -> None:
        """Refuses an operation that is in no stage."""
        if op.name not in self.stage_of:
            raise self.refuse_outside(op)

    def is_in_forward(self, stage: int, op: tf.Operation) -> bool:
        """Says whether an operation may be computed in a stage's forward."""
        self.check_block(op)
        home = self.stage_of[op.name]
        return (home is None or home == stage) and not self.is_given(op)

    def is_given(self, op: tf.Operation) -> bool:
        """Says whether what an operation gives comes from outside of all stages.

        Arguments and handles do, and what is read of a variable that the forward pass does not
        change: it is read once for all micro-batches.
        """
        if op.type in ("Placeholder", "VarHandleOp") or any(op is t.op for t in self.arguments):
            return True
        return op.type == "ReadVariableOp" and op.inputs[0].name not in self.written

    def slice_forward(self, kept: Sequence[Sequence[tf.Tensor]] = ()) -> list[Slice]:
        """Finds out what each stage's forward has to compute, from the last stage to the first.

        Args:
          kept: What each stage's backward takes of the forward pass.
        """
        wanted: list[list[Any]] = [[] for _ in self.stage_names]
        for tensor in self.results():
            wanted[self.home(tensor)].append(tensor)
        for op in self.effects:
            self.check_block(op)
            wanted[self.stage_of[op.name] or 0].append(op)
        for stage, tensors in enumerate(kept):
            for tensor in tensors:
                wanted[self.home(tensor, stage)].append(tensor)
        slices: list[Slice] = []
        for stage in reversed(range(len(wanted))):
            found = slice_graph(wanted[stage], partial(self.is_in_forward, stage))
            for tensor in found.inputs:
                if not self.is_given(tensor.op):
                    wanted[self.home(tensor)].append(tensor)
            slices.insert(0, found)
        return slices

    def handed_on(self, needed: Sequence[Sequence[tf.Tensor]], stage: int) -> list[tf.Tensor]:
        """What a stage computes and later ones use, of what each stage needs."""
        found = {
            tensor.name: tensor
            for of_later in needed[stage + 1 :]
            for tensor in of_later
            if not self.is_given(tensor.op) and self.stage_of[tensor.op.name] == stage
        }
        return list(found.values())


def by_handle(graph: Any, variables: Iterable[tf.Variable]) -> dict[str, tf.Variable]:
    """Gives variables by the names of their handles in a graph, less those it does not have.

    A function's graph, and a loop's body, know a handle from outside by a placeholder.
    """
    inside = {id(outer): placeholder for outer, placeholder in getattr(graph, "captures", ())}
    handles = ((inside.get(id(v.handle), v.handle), v) for v in variables)
    return {h.name: v for h, v in handles if getattr(h, "graph", None) is graph}
