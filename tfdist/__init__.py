"""Trains tf.estimator programs on several workers, on stock TensorFlow.

Importing this package does not import TensorFlow; `tfdist.estimator`, `tfdist.pipeline`,
`tfdist.strategies` and `tfdist.ipu` do. It sets the environment variables without which the Open
MPI of this Python environment does not start, so that `hvd.init()` works.
"""

import os as _os
import sys as _sys
from pathlib import Path as _Path

from tfdist.process import open_mpi as _open_mpi

_os.environ.update(_open_mpi.missing_variables(_os.environ, _Path(_sys.prefix)))

__version__ = "0.1.0"

__all__ = ["__version__"]
