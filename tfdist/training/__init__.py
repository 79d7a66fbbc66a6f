"""Training features between a gradient and the weights: optimizers, wrappers of them, schedules."""

from tfdist.training.layers.batch_norm import BatchNormalization, batch_normalization
from tfdist.training.layers.recomputation import recomputation_checkpoint, recompute
from tfdist.training.optimizers.adamw import AdamW
from tfdist.training.optimizers.lamb import LAMB
from tfdist.training.optimizers.lars import LARS
from tfdist.training.optimizers.sgd import SGD
from tfdist.training.schedules import (
    cosine_decay,
    linear_decay,
    polynomial_decay,
    stepped,
    warmup,
)
from tfdist.training.stochastic_rounding import stochastic_round
from tfdist.training.wrappers.accumulation import GradientAccumulationOptimizer
from tfdist.training.wrappers.clipping import ClippedOptimizer
from tfdist.training.wrappers.distributed import DistributedOptimizer
from tfdist.training.wrappers.loss_scale import LossScaleOptimizer
from tfdist.training.wrappers.scale_rules import (
    DynamicLossScale,
    FixedLossScale,
    HistogramLossScale,
    ScheduledLossScale,
)

__all__ = [
    "LAMB",
    "LARS",
    "SGD",
    "AdamW",
    "BatchNormalization",
    "ClippedOptimizer",
    "DistributedOptimizer",
    "DynamicLossScale",
    "FixedLossScale",
    "GradientAccumulationOptimizer",
    "HistogramLossScale",
    "LossScaleOptimizer",
    "ScheduledLossScale",
    "batch_normalization",
    "cosine_decay",
    "linear_decay",
    "polynomial_decay",
    "recomputation_checkpoint",
    "recompute",
    "stepped",
    "stochastic_round",
    "warmup",
]


def __dir__() -> list[str]:
    return [*__all__]
