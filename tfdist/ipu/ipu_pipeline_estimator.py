"""`ipu.ipu_pipeline_estimator`: the Estimator whose model_fn returns stages, and its spec."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from tfdist.estimator import Estimator as IPUPipelineEstimator
from tfdist.estimator import OptimizerFunctionOutput, PipelineEstimatorSpec
from tfdist.ipu.config import configured
from tfdist.ipu.pipelining_ops import PipelineSchedule

__all__ = ["IPUPipelineEstimator", "IPUPipelineEstimatorSpec"]


def IPUPipelineEstimatorSpec(
    mode: str,
    computational_stages: Sequence[Callable[..., Any]],
    gradient_accumulation_count: int | None = None,
    eval_metrics_fn: Callable[..., dict[str, Any]] | None = None,
    optimizer_function: Callable[..., OptimizerFunctionOutput] | None = None,
    device_mapping: Sequence[int] | None = None,
    *,
    pipeline_schedule: PipelineSchedule | None = None,
    reduction_method: Literal["mean", "sum"] = "sum",
    recomputation: bool | None = None,
    **others: Any,
) -> PipelineEstimatorSpec:
    """Makes a `PipelineEstimatorSpec` with the original's order of arguments and its defaults.

    Args:
      mode: As in `PipelineEstimatorSpec`.
      computational_stages: As in `PipelineEstimatorSpec`.
      gradient_accumulation_count: As in `PipelineEstimatorSpec`.
      eval_metrics_fn: As in `PipelineEstimatorSpec`.
      optimizer_function: As in `PipelineEstimatorSpec`.
      device_mapping: As in `PipelineEstimatorSpec`.
      pipeline_schedule: One of `PipelineSchedule`; None is Grouped.
      reduction_method: "sum" adds up the gradients of a step's micro-batches, as the original
        does; "mean" divides the sum by their number.
      recomputation: As in `PipelineEstimatorSpec`; None is `IPUConfig.allow_recompute`.
      **others: Further arguments of `PipelineEstimatorSpec`.
    """
    return PipelineEstimatorSpec(
        mode=mode,
        computational_stages=computational_stages,
        gradient_accumulation_count=gradient_accumulation_count,
        eval_metrics_fn=eval_metrics_fn,
        optimizer_function=optimizer_function,
        device_mapping=device_mapping,
        pipeline_schedule=PipelineSchedule(pipeline_schedule or "grouped").value,
        reduction_method=reduction_method,
        recomputation=configured().allow_recompute if recomputation is None else recomputation,
        **others,
    )
