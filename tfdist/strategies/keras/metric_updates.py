"""Updates of the program's own metrics where Keras executes eagerly (`run_eagerly=True`).

The values that a metric's variables have on the replicas are added. That is right of sums over
rows. In a function the graph tells what is none; code that is executed is watched:

    a value that is not the variable's own plus something     no sum, such as a maximum
    the same number in each update, computed from no row      no sum over rows, such as a number of
                                                              batches
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.strategies.eager.recorded_ops import RecordedOps
from tfdist.strategies.eager.step import NOW, Assignment, own_rows
from tfdist.strategies.keras.extension import is_of_keras


def metrics_of_the_program(model: Any) -> list[tuple[Any, Any]]:
    """Returns a model's metrics that are no classes of Keras, each with the one that contains it.

    Keras 3 has one metric of all compiled ones; others contain themselves.
    """
    return [
        (metric, one)
        for one in model.metrics
        for metric in (one, *getattr(one, "metrics", ()))
        if not is_of_keras(type(metric).update_state)
    ]


class EagerUpdates:
    """Notes on the updates of metrics in all steps so far, by their variables."""

    def __init__(self) -> None:
        self._no_sums: set[int] = set()  # The ids of variables.
        # By a variable's id: the number that each update has added, None if they vary; how often.
        self._added: dict[int, tuple[float | None, int]] = {}

    def watched(self, update: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a metric's `update_state` that notes what it does in the steps of replicas."""

        @functools.wraps(update)
        def watched_update(*args: Any, **kwargs: Any) -> Any:
            step = NOW.step
            if step is None or not tf.executing_eagerly():
                return update(*args, **kwargs)
            ops, first = RecordedOps((args, kwargs)), len(step.assignments)
            with ops.recorded():
                result = update(*args, **kwargs)
            for assignment in step.assignments[first:]:
                self._note(assignment, ops)
            return result

        return watched_update

    def is_no_sum_of_rows(self, variable: Any) -> bool:
        """Returns whether a variable is known to be none; a constant is one after two updates."""
        number, count = self._added.get(id(variable), (None, 0))
        return id(variable) in self._no_sums or (number is not None and count > 1)

    def _note(self, assignment: Assignment, ops: RecordedOps) -> None:
        variable, value = assignment.variable, assignment.value
        added: Sequence[Any] | None = [value]
        if not assignment.is_added:
            added = ops.added_to(variable, value)
            if added is None and ops.is_known(value):
                self._no_sums.add(id(variable))
        if added is not None:
            before, count = self._added.get(id(variable), (None, 0))
            number = _constant(added, ops)
            is_same = count == 0 or number == before
            self._added[id(variable)] = (number if is_same else None, count + 1)


def _constant(added: Sequence[Any], ops: RecordedOps) -> float | None:
    """Returns the number that is added; None if it is computed from rows, or may be.

    A number of rows, which is known here without a tensor, may be one.
    """
    rows = own_rows()
    if rows is None or len(added) != 1 or not ops.is_constant(added[0]):
        return None
    if tf.convert_to_tensor(added[0]).shape.rank != 0:
        return None
    number = float(added[0])
    return number if number not in (0.0, float(rows)) else None
