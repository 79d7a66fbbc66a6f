"""A model_fn whose model is cut into stages on several devices.

`tfdist.estimator.pipelined.model` builds it; most Estimators never import that.
"""

from tfdist.estimator.pipelined.needs import in_steps, num_devices_in
from tfdist.estimator.pipelined.spec import OptimizerFunctionOutput, PipelineEstimatorSpec

__all__ = [
    "OptimizerFunctionOutput",
    "PipelineEstimatorSpec",
    "in_steps",
    "num_devices_in",
]
