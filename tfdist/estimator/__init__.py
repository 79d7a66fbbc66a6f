"""The Estimator API on stock TensorFlow, with host_call.

Names, arguments, files and log lines are those of tf.estimator. Importing this package makes
`tf.keras` Keras 2 (tf-keras), whose layers build v1 graphs, unless the user decided otherwise.
"""

from tfdist.cluster import WorkerLostError
from tfdist.estimator import keras_version as _keras_version

_keras_version.choose()

from tfdist.estimator.estimator import Estimator  # noqa: E402
from tfdist.estimator.model_check import ModelMismatchError  # noqa: E402
from tfdist.estimator.run_config import DeviceConfig, RunConfig  # noqa: E402
from tfdist.estimator.spec import EstimatorSpec, ModeKeys  # noqa: E402
from tfdist.estimator.train_and_evaluate import train_and_evaluate  # noqa: E402
from tfdist.estimator.train_spec import EvalSpec, TrainSpec  # noqa: E402
from tfdist.estimator.warm_start import VocabInfo, WarmStartSettings  # noqa: E402

__all__ = [
    "DeviceConfig",
    "Estimator",
    "EstimatorSpec",
    "EvalSpec",
    "ModeKeys",
    "ModelMismatchError",
    "RunConfig",
    "TrainSpec",
    "VocabInfo",
    "WarmStartSettings",
    "WorkerLostError",
    "train_and_evaluate",
]
