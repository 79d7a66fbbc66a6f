"""`ipu.pipelining_ops`: the schedules' names, and what an optimizer_function returns."""

from enum import Enum

from tfdist.estimator import OptimizerFunctionOutput

__all__ = ["OptimizerFunctionOutput", "PipelineSchedule"]


class PipelineSchedule(Enum):
    """The original's names for the schedules of a pipeline."""

    Grouped = "grouped"
    Interleaved = "interleaved"
    Sequential = "sequential"
