"""GraphDialect: what a strategy does in a graph with sessions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.strategies.dataset_memory import with_own_memory
from tfdist.strategies.graph.variables import GraphVariables
from tfdist.strategies.placement import Placement
from tfdist.strategies.private_runtime import (
    InputPlan,
    make_distributed_dataset,
    make_distributed_dataset_from_function,
)


@dataclass(frozen=True)
class GraphDialect:
    """The dialect of graphs; see `Dialect` for the methods.

    Attributes:
      variables: Makes and combines the variables of the current graph.
    """

    variables: GraphVariables

    adds_equal_rows = True
    has_partial_batches = False

    def create_variable(self, next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        return self.variables.create(next_creator, **kwargs)

    def read(self, variable: Any) -> tf.Tensor:
        return self.variables.read(variable)

    def colocated_with(self, variable: Any) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = v1.get_default_graph().colocate_with(variable)
        return context

    def devices(self, placement: Placement, *, is_entered: bool) -> tuple[str, ...]:
        return placement.devices

    def refuse_late_entry(self) -> None:
        """Does nothing: the workers of a graph meet before its first session."""

    def run_step(self, call: Callable[[], Any], batches: Sequence[Any], name: str) -> Any:
        return call()

    def distribute(self, dataset: Any, plan: InputPlan, *, divides_batches: bool) -> Any:
        return make_distributed_dataset(with_own_memory(dataset), plan)

    def distribute_from_function(self, dataset_fn: Any, plan: InputPlan) -> Any:
        return make_distributed_dataset_from_function(
            lambda context: with_own_memory(dataset_fn(context)), plan
        )
