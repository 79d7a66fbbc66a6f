"""`ipu.ipu_pipeline_estimator`: the Estimator with a model_fn that returns stages, and its spec."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tfdist.estimator import Estimator as IPUPipelineEstimator
from tfdist.estimator import OptimizerFunctionOutput, PipelineEstimatorSpec
from tfdist.ipu.config import configured
from tfdist.ipu.optimizers import GradientAccumulationReductionMethod
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
    reduction_method: GradientAccumulationReductionMethod | str = "sum",
    inputs: Sequence[Any] | None = None,
    recomputation: bool | None = None,
    **others: Any,
) -> PipelineEstimatorSpec:
    """Makes a `PipelineEstimatorSpec` with the original's order of arguments and its defaults.

    The arguments are as in `PipelineEstimatorSpec`. A `pipeline_schedule` of None is Grouped, a
    `recomputation` of None is `IPUConfig.allow_recompute`. The "sum" of the gradients of a step's
    micro-batches is the original's reduction; "mean" divides it by their number. Members of
    `GradientAccumulationReductionMethod` say the same.

    Raises:
      ValueError: If there are `inputs`, or the reduction is unknown.
    """
    if inputs:
        raise ValueError(
            f"IPUPipelineEstimatorSpec got {len(inputs)} inputs, and the first stage gets what the "
            "input_fn yields. Use them in that stage: def first(features, labels), as a closure."
        )
    return PipelineEstimatorSpec(
        mode=mode,
        computational_stages=computational_stages,
        gradient_accumulation_count=gradient_accumulation_count,
        eval_metrics_fn=eval_metrics_fn,
        optimizer_function=optimizer_function,
        device_mapping=device_mapping,
        pipeline_schedule=PipelineSchedule(pipeline_schedule or "grouped").value,
        reduction_method=GradientAccumulationReductionMethod.parse(reduction_method).reduction,
        recomputation=configured().allow_recompute if recomputation is None else recomputation,
        **others,
    )
