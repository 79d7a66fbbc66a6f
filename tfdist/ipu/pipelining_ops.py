"""`ipu.pipelining_ops`: the names of schedules, and the result of an optimizer_function."""

from enum import Enum

from tfdist.estimator import OptimizerFunctionOutput

__all__ = ["OptimizerFunctionOutput", "PipelineSchedule"]


class PipelineSchedule(Enum):
    """The original's names for the schedules of a pipeline."""

    Grouped = "grouped"
    Interleaved = "interleaved"
    Sequential = "sequential"
