"""Training features between a gradient and the weights: optimizers, wrappers of them, schedules."""

from tfdist.training.adamw import AdamW
from tfdist.training.clipping import ClippedOptimizer
from tfdist.training.distributed import DistributedOptimizer
from tfdist.training.lamb import LAMB
from tfdist.training.lars import LARS
from tfdist.training.loss_scale import LossScaleOptimizer
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
    "ClippedOptimizer",
    "DistributedOptimizer",
    "LossScaleOptimizer",
    "cosine_decay",
    "linear_decay",
    "polynomial_decay",
    "stepped",
    "stochastic_round",
    "warmup",
]


def __dir__() -> list[str]:
    return [*__all__]
