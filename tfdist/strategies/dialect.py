"""Dialects of TensorFlow: graphs with sessions, and TensorFlow 2, eager or in a tf.function.

One strategy serves both. What it does differently stands in one object for each dialect:

    WorkerExtended -- dialect --> graph.dialect.GraphDialect    initial values, colocation, gates
                              --> eager.dialect.EagerDialect    values at once, steps, datasets
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.strategies.placement import Placement
from tfdist.strategies.private_runtime import InputPlan


def is_tensorflow_2() -> bool:
    """Returns whether this is TensorFlow 2's dialect, in or outside of functions.

    False inside a v1 graph, also one that was made in a program that executes eagerly.
    """
    return bool(v1.executing_eagerly_outside_functions())


class Dialect(Protocol):
    """The part of a strategy that differs between the dialects.

    Attributes:
      adds_equal_rows: Whether rows of equal index are added before slices are combined. In
        TensorFlow 2 the slices may be gradients to clip: rows stay apart, as in one process.
      has_partial_batches: Whether a distributed dataset may end with a batch in which a replica
        has fewer rows than others.
    """

    @property
    def adds_equal_rows(self) -> bool: ...

    @property
    def has_partial_batches(self) -> bool: ...

    def create_variable(self, next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        """Makes a variable with worker 0's initial value."""

    def read(self, variable: Any) -> tf.Tensor:
        """Reads a variable in cross-replica context."""

    def colocated_with(self, variable: Any) -> AbstractContextManager[Any]:
        """Returns a context in which operations are where a variable is."""

    def devices(self, placement: Placement, *, is_entered: bool) -> tuple[str, ...]:
        """Returns the device of each replica of this worker.

        `is_entered` says whether a program of TensorFlow 2 has entered the strategy.
        """

    def refuse_late_entry(self) -> None:
        """Raises an error if the workers have to meet first, and cannot where this is called."""

    def run_step(self, call: Callable[[], Any], batches: Sequence[Any], name: str) -> Any:
        """Runs the code of all replicas of this worker.

        Args:
          call: Runs the replicas' code, and returns its results.
          batches: The first argument of that code, for each replica; empty without one.
          name: The name of that code.
        """

    def distribute(self, dataset: Any, plan: InputPlan, *, divides_batches: bool) -> Any:
        """Returns a dataset distributed over the replicas; see `WorkerExtended`."""

    def distribute_from_function(self, dataset_fn: Any, plan: InputPlan) -> Any:
        """Returns a dataset of this worker's batches, which `dataset_fn(input_context)` makes."""
