"""EagerDialect: what a strategy does in TensorFlow 2, eager or in a tf.function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfdist.process.endings import OneLineError
from tfdist.strategies.eager.datasets import distribute, distribute_from_function, distribute_own
from tfdist.strategies.eager.own_loop import LOOP
from tfdist.strategies.eager.replica_variable import note_updates
from tfdist.strategies.eager.step import NOW, run_step
from tfdist.strategies.eager.variables import EagerVariables
from tfdist.strategies.placement import Placement
from tfdist.strategies.private_runtime import InputPlan
from tfdist.strategies.reductions.reducer import Reducer


class NotJoinedError(OneLineError, RuntimeError):
    """A program of TensorFlow 2 sends a message before the workers have met."""


@dataclass(frozen=True)
class EagerDialect:
    """The dialect of TensorFlow 2; see `Dialect` for the methods.

    Attributes:
      variables: Makes the variables.
      reducer: Combines values over all replicas.
    """

    variables: EagerVariables
    reducer: Reducer

    adds_equal_rows = False
    has_partial_batches = True  # `datasets` changes it for datasets of known lengths.

    def create_variable(self, next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        return self.variables.create(next_creator, **kwargs)

    def read(self, variable: Any) -> tf.Tensor:
        return tf.convert_to_tensor(variable)

    def colocated_with(self, variable: Any) -> AbstractContextManager[Any]:
        return nullcontext()

    def devices(self, placement: Placement, *, is_entered: bool) -> tuple[str, ...]:
        return placement.eager_devices if is_entered else placement.devices

    def refuse_late_entry(self) -> None:
        """Raises an error: this is a function, and the workers have not met before.

        Raises:
          NotJoinedError: If there are other workers.
        """
        if self.reducer.collectives.num_workers > 1:
            raise NotJoinedError(
                "this program uses the strategy for the first time in a tf.function, where the "
                "workers cannot meet. Enter strategy.scope() before it."
            )

    def run_step(self, call: Callable[[], Any], batches: Sequence[Any], name: str) -> Any:
        if NOW.is_running:  # Optimizers call this inside of a step.
            return call()

        def run() -> Any:
            return run_step(call, batches, self.reducer, before=note_updates)

        if NOW.step is not None:  # A Keras model's.
            return run()
        return LOOP.run(name, batches, run)

    def distribute(self, dataset: Any, plan: InputPlan, *, divides_batches: bool) -> Any:
        make = distribute if divides_batches else distribute_own
        return make(dataset, plan)

    def distribute_from_function(self, dataset_fn: Any, plan: InputPlan) -> Any:
        return distribute_from_function(dataset_fn, plan)
