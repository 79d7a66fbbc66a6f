"""Model functions with a model in stages on several devices.

`tfdist.estimator.pipelined.model` builds the model; most Estimators never import that module.
"""

from tfdist.estimator.pipelined.spec import (
    OptimizerFunctionOutput,
    PipelineEstimatorSpec,
    in_steps,
    num_devices_in,
)

__all__ = ["OptimizerFunctionOutput", "PipelineEstimatorSpec", "in_steps", "num_devices_in"]


def __dir__() -> list[str]:
    return [*__all__]
