"""Trains tf.estimator programs on several workers, on stock TensorFlow.

Importing this package does not import TensorFlow; `tfdist.estimator`, `tfdist.pipeline`,
`tfdist.strategies` and `tfdist.ipu` do.
"""

__version__ = "0.1.0"

__all__ = ["__version__"]
