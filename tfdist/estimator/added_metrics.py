"""`add_metrics`: an Estimator that evaluates additional metrics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tfdist.estimator.arguments import argument_names, call_with
from tfdist.estimator.estimator import Estimator
from tfdist.estimator.pipelined import PipelineEstimatorSpec
from tfdist.estimator.run_config import RunConfig
from tfdist.estimator.spec import EstimatorSpec, ModeKeys

_ARGUMENTS = ("features", "labels", "predictions", "config")


def add_metrics(estimator: Estimator, metric_fn: Callable[..., dict[str, Any]]) -> Estimator:
    """Makes an Estimator that evaluates the metrics of another Estimator and additional ones.

    Args:
      estimator: The other Estimator. The new one shares its model_dir, config and warm start.
      metric_fn: A function of any of `features`, `labels`, `predictions` and `config` that returns
        a dict of name to metric, as in `eval_metric_ops`. A metric of the model with the same name
        is replaced. It runs after model_fn, in the same place.

    Raises:
      ValueError: If `metric_fn` has other arguments.
    """
    unknown = sorted(set(argument_names(metric_fn)) - set(_ARGUMENTS))
    if unknown:
        raise ValueError(
            f"metric_fn ({metric_fn}) has following not expected args: {unknown}. Allowed are "
            f"{', '.join(_ARGUMENTS)}."
        )

    def model_fn(features: Any, labels: Any, mode: str, config: RunConfig) -> EstimatorSpec:
        spec = estimator.model_fn(features, labels, mode, config)
        if mode != ModeKeys.EVAL:
            return spec
        offered = {
            "features": features,
            "labels": labels,
            "predictions": spec.predictions,
            "config": config,
        }
        return _with_metrics(spec, call_with(metric_fn, offered))

    class WithAddedMetrics(Estimator):
        """An Estimator with additional metrics; everything else is the other Estimator's."""

        def _pipeline(self, mode: str) -> PipelineEstimatorSpec | None:
            return estimator._pipeline(mode)

        def _build_pipelines(self, batches: Sequence[tuple[Any, Any]]) -> list[EstimatorSpec]:
            return estimator._build_pipelines(batches)

    return WithAddedMetrics(
        model_fn=model_fn,
        model_dir=estimator.model_dir,
        config=estimator.config,
        warm_start_from=estimator._warm_start,
    )


def _with_metrics(spec: EstimatorSpec, added: dict[str, Any]) -> EstimatorSpec:
    if spec.eval_metrics is None:
        return spec._replace(eval_metric_ops={**(spec.eval_metric_ops or {}), **added})
    function, tensors = spec.eval_metrics

    def all_metrics(*args: Any, **kwargs: Any) -> dict[str, Any]:
        return {**function(*args, **kwargs), **added}

    return spec._replace(eval_metrics=(all_metrics, tensors))
