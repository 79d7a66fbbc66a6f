"""The names of the original system as aliases of tfdist's, one module for each of its modules.

A program moves by changing its import lines:

    from tfdist.ipu import tensorflow as tf      # for: import tensorflow as tf
    from tfdist import ipu                       # for: from tensorflow.python import ipu
    from tfdist.ipu import horovod as hvd        # for: from tensorflow.python.ipu import ...
    from tfdist.ipu import popdist               # for: import popdist, import popdist.tensorflow
"""

from tfdist.ipu import (
    config,
    distributed,
    ipu_estimator,
    ipu_multi_worker_strategy,
    ipu_pipeline_estimator,
    ipu_run_config,
    ipu_session_run_hooks,
    ipu_strategy,
    optimizers,
    pipelining_ops,
    popdist,
    tensorflow,
    utils,
)

__all__ = [
    "config",
    "distributed",
    "ipu_estimator",
    "ipu_multi_worker_strategy",
    "ipu_pipeline_estimator",
    "ipu_run_config",
    "ipu_session_run_hooks",
    "ipu_strategy",
    "optimizers",
    "pipelining_ops",
    "popdist",
    "tensorflow",
    "utils",
]


def __dir__() -> list[str]:
    return [*__all__]
