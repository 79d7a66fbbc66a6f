"""Model functions whose model is cut into stages on several devices.

`tfdist.estimator.pipelined.model` builds it; most Estimators never import that.
"""

from tfdist.estimator.pipelined.spec import (
    OptimizerFunctionOutput,
    PipelineEstimatorSpec,
    in_steps,
    num_devices_in,
)

__all__ = [
    "OptimizerFunctionOutput",
    "PipelineEstimatorSpec",
    "in_steps",
    "num_devices_in",
]
