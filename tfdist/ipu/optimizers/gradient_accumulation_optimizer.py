"""`ipu.optimizers.gradient_accumulation_optimizer`: updates after several mini-batches."""

from __future__ import annotations

from enum import Enum
from typing import Any, Literal

from tfdist import training
from tfdist.ipu.without_effect import log_without_effect


class GradientAccumulationReductionMethod(Enum):
    """Reductions of the gradients of an update's mini-batches.

    RUNNING_MEAN is MEAN: sums are in float32, and do not overflow.
    """

    SUM = "sum"
    MEAN = "mean"
    RUNNING_MEAN = "running_mean"

    @property
    def reduction(self) -> Literal["sum", "mean"]:
        """The reduction as tfdist names it."""
        return "sum" if self is GradientAccumulationReductionMethod.SUM else "mean"

    @classmethod
    def parse(cls, value: Any) -> GradientAccumulationReductionMethod:
        """Returns the member that a `value` is, or that it names in any case; else a ValueError."""
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
        log_without_effect(type(self).__name__, [name for name in unused if unused[name]])
        method = GradientAccumulationReductionMethod.parse(reduction_method)
        super().__init__(opt, num_mini_batches, method.reduction)


class CrossReplicaGradientAccumulationOptimizerV2(GradientAccumulationOptimizerV2):
    """The same: a `GradientAccumulationOptimizerV2` reduces over the replicas here.

    Args:
      opt: The optimizer.
      num_mini_batches: Mini-batches of an update, each a session call.
      offload_weight_update_variables: Has no effect, which is logged.
      replicated_optimizer_state_sharding: Has no effect, which is logged.
      dtype: Has no effect, which is logged: sums are float32 (float64 for float64).
      reduction_method: A `GradientAccumulationReductionMethod`, or its name.
      name: Has no effect.
    """


class GradientAccumulationOptimizer(GradientAccumulationOptimizerV2):
    """`GradientAccumulationOptimizerV2` with the older one's arguments, for any optimizer.

    `verify_usage` and `name` have no effect.

    Args:
      opt: The optimizer.
      num_mini_batches: Mini-batches of an update, each a session call.
    """

    def __init__(
        self,
        opt: Any,
        num_mini_batches: int,
        verify_usage: bool = True,
        name: str = "GradientAccumulationOptimizer",
    ) -> None:
        super().__init__(opt, num_mini_batches)
