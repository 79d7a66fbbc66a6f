"""Input functions over data in memory, and the batches of an input function."""

from tfdist.estimator.inputs.in_memory import numpy_input_fn, pandas_input_fn

__all__ = ["numpy_input_fn", "pandas_input_fn"]


def __dir__() -> list[str]:
    return [*__all__]
