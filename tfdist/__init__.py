"""Trains tf.estimator programs on several workers, on stock TensorFlow.

Importing this package does not import TensorFlow. Its packages are attributes that are imported
when they are used: `import tfdist`, then `tfdist.estimator.Estimator`. It sets the environment
variables without which the Open MPI of this Python environment does not start, so that `hvd.init()`
works, and makes Horovod refuse optimizers whose gradients it would not reduce. `launch` is a
function as well as a package: `tfdist.launch(train, num_instances=2)`.
"""

import importlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfdist.process import horovod_keras, open_mpi

if TYPE_CHECKING:
    from tfdist.launch.functions.launch import launch  # The package of this name can be called.

os.environ.update(open_mpi.missing_variables(os.environ, Path(sys.prefix)))
horovod_keras.refuse_keras_3()

__version__ = "0.1.0"

__all__ = [
    "__version__",
    "cluster",
    "estimator",
    "ipu",
    "launch",
    "monitoring",
    "pipeline",
    "strategies",
    "testing",
    "training",
]


def __dir__() -> list[str]:
    return [*__all__]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
