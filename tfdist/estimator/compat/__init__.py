"""The places from which programs and libraries import tf.estimator, filled by tfdist.estimator."""

__all__: list[str] = []  # internal
