"""`ipu.pipelining_ops`: names of schedules, an optimizer_function's result, recomputation."""

from __future__ import annotations

from enum import Enum
from typing import Any, NoReturn

import tensorflow as tf

from tfdist.estimator import OptimizerFunctionOutput
from tfdist.training import recomputation_checkpoint as _checkpoint

__all__ = ["OptimizerFunctionOutput", "PipelineSchedule", "pipeline", "recomputation_checkpoint"]


class PipelineSchedule(Enum):
    """The original's names for the schedules of a pipeline."""

    Grouped = "grouped"
    Interleaved = "interleaved"
    Sequential = "sequential"


def recomputation_checkpoint(tensor: tf.Tensor, name: str | None = None) -> tf.Tensor:
    """Keeps a `tensor` in a recomputed stage, as `tfdist.training.recomputation_checkpoint` does.

    The `name` has no effect.
    """
    return _checkpoint(tensor)


def pipeline(*args: Any, **options: Any) -> NoReturn:
    """Raises a NotImplementedError that says what to write: a pipeline is an Estimator's.

    It takes the original's `args` and `options`.
    """
    raise NotImplementedError(
        "pipelining_ops.pipeline is not supported: a pipeline belongs to an Estimator here. Return "
        "IPUPipelineEstimatorSpec(mode, computational_stages, gradient_accumulation_count, "
        "optimizer_function=...) from the model_fn of an IPUPipelineEstimator."
    )
