"""Names of other modules of `tensorflow_estimator.python.estimator` that libraries import."""

from __future__ import annotations

from tfdist.estimator.arguments import argument_names as fn_args
from tfdist.estimator.experimental import call_logit_fn
from tfdist.estimator.v1.tpu import TPUEstimatorSpec

__all__ = ["AVERAGE_LOSS_METRIC_KEY", "LOSS_METRIC_KEY", "call_logit_fn", "fn_args"]

LOSS_METRIC_KEY = "loss"
AVERAGE_LOSS_METRIC_KEY = "average_loss"
_TPUEstimatorSpec = TPUEstimatorSpec
