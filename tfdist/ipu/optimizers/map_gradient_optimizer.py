"""`ipu.optimizers.map_gradient_optimizer`: gradients that a function changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tfdist.training.wrappers.optimizer_wrapper import OptimizerWrapper, Pairs, wrapper_names


class MapGradientOptimizer(OptimizerWrapper):
    """An optimizer that gets gradients changed by a function: clipped, or with a weight decay.

    The function gets gradients that are reduced over all replicas and workers, in float32, so that
    N workers train what one trains. The original called it for each replica's own gradient.

    Args:
      wrapped_optimizer: The optimizer.
      gradient_mapping_function: Called with a gradient (a tensor of the variable's shape, or
        `tf.IndexedSlices`) and its variable; returns the changed gradient.
      name: Has no effect.

    Raises:
      TypeError: If it is not a function.
      ValueError: If the optimizer accumulates gradients or scales the loss: those are outside.
    """

    def __init__(
        self,
        wrapped_optimizer: Any,
        gradient_mapping_function: Callable[[Any, Any], Any],
        name: str = "MapGradientOptimizer",
    ) -> None:
        super().__init__(wrapped_optimizer)
        if not callable(gradient_mapping_function):
            raise TypeError(
                "gradient_mapping_function must be a function of gradient and variable, got "
                f"{gradient_mapping_function!r}."
            )
        self._function = gradient_mapping_function
        inner = wrapper_names(wrapped_optimizer)
        for outer in ("GradientAccumulationOptimizer", "LossScaleOptimizer"):
            if outer in inner:
                raise ValueError(
                    "wrappers of optimizers are in a wrong order: MapGradientOptimizer around "
                    f"{outer}. Write {outer}(MapGradientOptimizer(optimizer, function))."
                )

    def _update(self, reduced: Pairs) -> Any:
        return self.apply_reduced(
            [(self._function(g, variable), variable) for g, variable in reduced]
        )
