"""`add_metrics`: an Estimator that evaluates additional metrics."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from tfdist.estimator.config.arguments import call_with, check_no_others
from tfdist.estimator.config.run_config import RunConfig
from tfdist.estimator.estimator import Estimator
from tfdist.estimator.spec import EstimatorSpec, ModeKeys


def add_metrics(estimator: Estimator, metric_fn: Callable[..., dict[str, Any]]) -> Estimator:
    """Makes an Estimator that evaluates the metrics of another Estimator and additional ones.

    Args:
      estimator: The other Estimator. The new one has its class and all of its settings.
      metric_fn: A function of any of `features`, `labels`, `predictions` and `config` that returns
        a dict of name to metric, as in `eval_metric_ops`. A metric of the model with the same name
        is replaced. It runs after model_fn, in the same place.

    Raises:
      ValueError: If `metric_fn` has other arguments.
    """
    check_no_others("metric_fn", metric_fn, ("features", "labels", "predictions", "config"))

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

    added = copy.copy(estimator)
    vars(added).update(
        _model_fn=model_fn,
        _pipeline=estimator._pipeline,
        _build_pipelines=estimator._build_pipelines,
    )
    return added


def _with_metrics(spec: EstimatorSpec, added: dict[str, Any]) -> EstimatorSpec:
    if spec.eval_metrics is None:
        return spec._replace(eval_metric_ops={**(spec.eval_metric_ops or {}), **added})
    function, tensors = spec.eval_metrics

    def all_metrics(*args: Any, **kwargs: Any) -> dict[str, Any]:
        return {**function(*args, **kwargs), **added}

    return spec._replace(eval_metrics=(all_metrics, tensors))
