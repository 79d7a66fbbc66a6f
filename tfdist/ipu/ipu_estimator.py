"""`ipu.ipu_estimator`: the Estimator and its spec, with host_call and eval_metrics."""

from __future__ import annotations

from typing import Any

from tfdist.estimator import Estimator
from tfdist.estimator import EstimatorSpec as IPUEstimatorSpec

__all__ = ["IPUEstimator", "IPUEstimatorSpec"]


class IPUEstimator(Estimator):
    """The Estimator, with the original's limits for `params`: a dict without "input_fn".

    Raises:
      ValueError: If `params` is something else.
    """

    def __init__(
        self,
        model_fn: Any,
        model_dir: Any = None,
        config: Any = None,
        params: dict[str, Any] | None = None,
        *arguments: Any,
        **named: Any,
    ) -> None:
        if params is not None and not isinstance(params, dict):
            raise ValueError(
                f"`params` is expected to be of type `dict`, got {params!r}. Write "
                "params=dict(...), or vars(params) of an object."
            )
        if params and "input_fn" in params:
            raise ValueError(
                "['input_fn'] are reserved keys but existed in params. Give the key another name; "
                "train, evaluate and predict take the input_fn."
            )
        super().__init__(model_fn, model_dir, config, params, *arguments, **named)
