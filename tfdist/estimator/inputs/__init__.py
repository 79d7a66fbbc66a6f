"""Input functions over data in memory: `tf.compat.v1.estimator.inputs`."""

from tfdist.estimator.inputs.numpy_input import numpy_input_fn
from tfdist.estimator.inputs.pandas_input import pandas_input_fn

__all__ = ["numpy_input_fn", "pandas_input_fn"]
