"""The places from which programs and libraries import tf.estimator, filled by tfdist.estimator."""

from tfdist.estimator.compat.enabling import enable_compat

__all__ = ["enable_compat"]


def __dir__() -> list[str]:
    return [*__all__]
