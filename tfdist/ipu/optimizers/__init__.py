"""`ipu.optimizers`: optimizers that wrap an optimizer."""

from tfdist.ipu.optimizers.automatic_loss_scaling_optimizer import AutomaticLossScalingOptimizer
from tfdist.ipu.optimizers.cross_replica_optimizer import CrossReplicaOptimizer
from tfdist.ipu.optimizers.gradient_accumulation_optimizer import (
    CrossReplicaGradientAccumulationOptimizerV2,
    GradientAccumulationOptimizer,
    GradientAccumulationOptimizerV2,
    GradientAccumulationReductionMethod,
)
from tfdist.ipu.optimizers.map_gradient_optimizer import MapGradientOptimizer
from tfdist.ipu.optimizers.sharded_optimizer import ShardedOptimizer

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


def __dir__() -> list[str]:
    return [*__all__]
