"""Functions that are cut out of a graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.pipeline.regions import Slice


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
