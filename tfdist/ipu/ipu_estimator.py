"""`ipu.ipu_estimator`: the Estimator and its spec, with host_call and eval_metrics."""

from tfdist.estimator import Estimator as IPUEstimator
from tfdist.estimator import EstimatorSpec as IPUEstimatorSpec

__all__ = ["IPUEstimator", "IPUEstimatorSpec"]
