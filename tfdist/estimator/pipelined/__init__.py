"""A model_fn whose model is cut into stages on several devices."""

from tfdist.estimator.pipelined.model import build_model, in_steps, num_devices_in
from tfdist.estimator.pipelined.spec import OptimizerFunctionOutput, PipelineEstimatorSpec

__all__ = [
    "OptimizerFunctionOutput",
    "PipelineEstimatorSpec",
    "build_model",
    "in_steps",
    "num_devices_in",
]
