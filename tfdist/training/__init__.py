"""Training features between a gradient and the weights: optimizers, wrappers of them, schedules."""

from tfdist.training.accumulation import GradientAccumulationOptimizer
from tfdist.training.adamw import AdamW
from tfdist.training.batch_norm import BatchNormalization, batch_normalization
from tfdist.training.clipping import ClippedOptimizer
from tfdist.training.distributed import DistributedOptimizer
from tfdist.training.lamb import LAMB
from tfdist.training.lars import LARS
from tfdist.training.loss_scale import LossScaleOptimizer
from tfdist.training.recomputation import recomputation_checkpoint, recompute
from tfdist.training.scale_rules import (
    DynamicLossScale,
    FixedLossScale,
    HistogramLossScale,
    ScheduledLossScale,
)
from tfdist.training.schedules import (
    cosine_decay,
    linear_decay,
    polynomial_decay,
    stepped,
    warmup,
)
from tfdist.training.sgd import SGD
from tfdist.training.stochastic_rounding import stochastic_round

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
