"""`ipu.optimizers`: optimizers that wrap an optimizer."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

import tensorflow as tf

from tfdist import training
from tfdist.cluster.tasks import checked_count
from tfdist.training.checks import check_number
from tfdist.training.optimizer import OptimizerWrapper, Pairs, wrapper_names
from tfdist.training.scale_rules import HistogramRule

__all__ = [
    "AutomaticLossScalingOptimizer",
    "CrossReplicaGradientAccumulationOptimizerV2",
    "CrossReplicaOptimizer",
    "GradientAccumulationOptimizer",
    "GradientAccumulationOptimizerV2",
    "GradientAccumulationReductionMethod",
    "MapGradientOptimizer",
    "ShardedOptimizer",
]


class CrossReplicaOptimizer(training.DistributedOptimizer):
    """`tfdist.training.DistributedOptimizer`: the mean of the gradients over all replicas.

    As everywhere in tfdist the gradients are those of `compute_gradients`, or of a loss that was
    divided by the number of replicas: their sum is the gradient of the mean loss.

    Args:
      opt: The optimizer.
      name: Has no effect.
    """

    def __init__(self, opt: Any, name: str = "CrossReplicaOptimizer") -> None:
        super().__init__(opt)


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


def ShardedOptimizer(optimizer: Any) -> Any:
    """Returns the optimizer: its ops are already placed where its variables are, which is logged.

    Args:
      optimizer: The optimizer.
    """
    tf.compat.v1.logging.info(
        "ShardedOptimizer has no effect: updates run where their variables are."
    )
    return optimizer


class GradientAccumulationReductionMethod(Enum):
    """Reductions of the gradients of an update's mini-batches.

    RUNNING_MEAN is MEAN: sums are in float32, and do not overflow.
    """

    SUM = "sum"
    MEAN = "mean"
    RUNNING_MEAN = "running_mean"

    @classmethod
    def parse(cls, value: Any) -> GradientAccumulationReductionMethod:
        """Returns a member from itself or its name in any case.

        Raises:
          ValueError: If it is neither.
        """
        if isinstance(value, cls):
            return value
        if isinstance(value, str) and value.upper() in cls.__members__:
            return cls[value.upper()]
        raise ValueError(f"Cannot parse {value!r} as one of {', '.join(cls.__members__)}.")


class GradientAccumulationOptimizerV2(training.GradientAccumulationOptimizer):
    """`tfdist.training.GradientAccumulationOptimizer` with the original's arguments and its sum.

    Gradients are reduced over all replicas and workers, as all optimizers' here.

    Args:
      opt: The optimizer.
      num_mini_batches: Mini-batches of an update, each a session call.
      offload_weight_update_variables: Has no effect, which is logged.
      replicated_optimizer_state_sharding: Has no effect, which is logged.
      dtype: Has no effect, which is logged: sums are float32 (float64 for float64).
      reduction_method: A `GradientAccumulationReductionMethod`, or its name.
      name: Has no effect.

    Raises:
      TypeError: If `opt` has no `apply_gradients`.
      ValueError: If the number is not an integer above 0, the method is unknown, or wrappers are in
        a wrong order.
    """

    def __init__(
        self,
        opt: Any,
        num_mini_batches: int,
        offload_weight_update_variables: bool | None = None,
        replicated_optimizer_state_sharding: bool = False,
        dtype: Any = None,
        reduction_method: Any = GradientAccumulationReductionMethod.SUM,
        name: str = "GradientAccumulationOptimizerV2",
    ) -> None:
        unused = {
            "offload_weight_update_variables": offload_weight_update_variables is not None,
            "replicated_optimizer_state_sharding": bool(replicated_optimizer_state_sharding),
            "dtype": dtype is not None,
        }
        if any(unused.values()):
            given = ", ".join(name for name, is_given in unused.items() if is_given)
            tf.compat.v1.logging.warning(
                "%s: no effect without an IPU: %s.", type(self).__name__, given
            )
        if isinstance(num_mini_batches, int) and num_mini_batches < 1:
            raise ValueError(
                f"num_mini_batches must be a positive number. It is {num_mini_batches}: 1 updates "
                "after each mini-batch."
            )
        method = GradientAccumulationReductionMethod.parse(reduction_method)
        is_sum = method is GradientAccumulationReductionMethod.SUM
        super().__init__(opt, num_mini_batches, "sum" if is_sum else "mean")


class CrossReplicaGradientAccumulationOptimizerV2(GradientAccumulationOptimizerV2):
    """The same: a `GradientAccumulationOptimizerV2` reduces over the replicas here."""


class GradientAccumulationOptimizer(GradientAccumulationOptimizerV2):
    """`GradientAccumulationOptimizerV2` with the older one's arguments, for any optimizer.

    Args:
      opt: The optimizer.
      num_mini_batches: Mini-batches of an update, each a session call.
      verify_usage: Has no effect.
      name: Has no effect.
    """

    def __init__(
        self,
        opt: Any,
        num_mini_batches: int,
        verify_usage: bool = True,
        name: str = "GradientAccumulationOptimizer",
    ) -> None:
        super().__init__(opt, num_mini_batches)


class AutomaticLossScalingOptimizer(training.LossScaleOptimizer):
    """`tfdist.training.LossScaleOptimizer` with the rule "histogram" and the original's arguments.

    A step whose reduced gradients are not finite is skipped: the original's device saturates
    instead.

    Args:
      opt: The optimizer.
      initial_loss_scaling_factor: The first scale.
      update_frequency: The number of steps between two changes of the scale.
      increase_factor: The factor by which the scale rises.
      decrease_factor: The factor by which it falls.
      max_loss_scaling_factor: The scale stays below it.
      accumulate_statistics_over_update_period: Whether the values of all steps since the last
        change are counted, or only those of the last step.
      ratio_threshold: The share of saturated values above which the scale falls.
      name: Has no effect.

    Raises:
      ValueError: If a number is out of the original's range.
    """

    def __init__(
        self,
        opt: Any,
        initial_loss_scaling_factor: float = 1,
        update_frequency: int = 8,
        increase_factor: float = 2,
        decrease_factor: float = 0.5,
        max_loss_scaling_factor: float = 32768,
        accumulate_statistics_over_update_period: bool = True,
        ratio_threshold: float = 1e-5,
        name: str = "AutomaticLossScalingOptimizer",
    ) -> None:
        checked_count("update_frequency", update_frequency)
        largest = check_number("max_loss_scaling_factor", max_loss_scaling_factor, above=1)
        increase = check_number("increase_factor", increase_factor, above=0)
        check_number("decrease_factor", decrease_factor, above=0, below=increase)
        check_number("ratio_threshold", ratio_threshold, above=0, below=1)
        # The first scale is below the largest one, and so is the next.
        limit = largest / max(increase, 1.0)
        first = check_number(
            "initial_loss_scaling_factor", initial_loss_scaling_factor, above=0, below=limit
        )
        rule = HistogramRule(
            initial_scale=first,
            update_steps=update_frequency,
            increase_factor=increase,
            decrease_factor=decrease_factor,
            min_scale=min(1.0, first),
            max_scale=largest,
            ratio_threshold=ratio_threshold,
            accumulates=bool(accumulate_statistics_over_update_period),
        )
        super().__init__(opt, rule=rule)
