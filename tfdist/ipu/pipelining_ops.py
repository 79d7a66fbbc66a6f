"""`ipu.pipelining_ops`: names of schedules, an optimizer_function's result, recomputation."""

from __future__ import annotations

from enum import Enum

import tensorflow as tf

from tfdist.estimator import OptimizerFunctionOutput
from tfdist.training import recomputation_checkpoint as _checkpoint

__all__ = ["OptimizerFunctionOutput", "PipelineSchedule", "recomputation_checkpoint"]


class PipelineSchedule(Enum):
    """The original's names for the schedules of a pipeline."""

    Grouped = "grouped"
    Interleaved = "interleaved"
    Sequential = "sequential"


def recomputation_checkpoint(tensor: tf.Tensor, name: str | None = None) -> tf.Tensor:
    """Keeps a tensor in a recomputed stage, as `tfdist.training.recomputation_checkpoint` does.

    Args:
      tensor: The tensor to keep.
      name: Has no effect.
    """
    return _checkpoint(tensor)
