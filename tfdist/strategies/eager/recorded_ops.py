"""Operations that code executes eagerly, and what their results were computed from.

A function that is traced is a graph (`replica_data`). Of code that is executed at once nothing
remains but values, so its operations are noted while they run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfdist.strategies.private_tensorflow import op_callback

_SUMS = ("AddV2", "Add", "AddN", "Sub")


@dataclass(frozen=True)
class _RecordedOp:
    """An operation; it keeps its tensors, so that no other one gets the `id` of one of them."""

    type: str
    inputs: Sequence[tf.Tensor]
    outputs: Sequence[tf.Tensor]


class RecordedOps:
    """The operations of a piece of code.

    What code has computed outside of TensorFlow, such as with the `numpy()` of a tensor, is a
    constant here.

    Args:
      arguments: The tensors that the code gets; anything else that it has not computed itself is a
        constant or a variable.
    """

    def __init__(self, arguments: Any) -> None:
        self._arguments = [
            leaf
            for leaf in tf.nest.flatten(arguments, expand_composites=True)
            if tf.is_tensor(leaf)
        ]
        self._producers: dict[int, _RecordedOp] = {}

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Notes the operations that this thread executes in the `with` block."""
        with op_callback(self._note):
            yield

    def _note(self, kind: str, inputs: Sequence[tf.Tensor], outputs: Sequence[tf.Tensor]) -> None:
        op = _RecordedOp(kind, inputs, outputs)
        self._producers.update((id(output), op) for output in outputs)

    def is_known(self, value: Any) -> bool:
        """Returns whether operations were recorded that compute a value, none of them a function's.

        What happens in a call of a tf.function is not seen.
        """
        op = self._producers.get(id(value))
        return op is not None and not self._is_of_function(value)

    def _is_of_function(self, value: Any) -> bool:
        op = self._producers.get(id(value))
        if op is None:
            return False
        return op.type.startswith("__") or any(map(self._is_of_function, op.inputs))

    def added_to(self, variable: Any, value: Any) -> list[tf.Tensor] | None:
        """Returns what a value adds to that of a `ReplicaVariable`; None if it is no such sum."""
        op = self._producers.get(id(value))
        if op is None:
            return None
        if op.type == "ReadVariableOp":
            return [] if any(op.inputs[0] is part for part in variable.handles) else None
        if op.type in ("Identity", "Cast"):
            return self.added_to(variable, op.inputs[0])
        terms = op.inputs if op.type in _SUMS else ()
        for place, term in enumerate(terms[:1] if op.type == "Sub" else terms):
            added = self.added_to(variable, term)
            if added is not None:
                return [*added, *terms[:place], *terms[place + 1 :]]
        return None

    def is_constant(self, value: Any) -> bool:
        """Returns whether a value was computed from constants alone."""
        if tf.is_symbolic_tensor(value) or any(value is one for one in self._arguments):
            return False
        op = self._producers.get(id(value))
        if op is None:
            return not tf.is_tensor(value) or value.dtype != tf.resource
        is_unknown = "Random" in op.type or op.type.startswith("__")
        return not is_unknown and all(map(self.is_constant, op.inputs))
