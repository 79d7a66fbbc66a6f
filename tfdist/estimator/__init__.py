"""The Estimator API on stock TensorFlow, with host_call.

Names, arguments, files and log lines are those of tf.estimator. Importing this package makes
`tf.keras` Keras 2 (tf-keras), because its layers build v1 graphs. A choice that the user has
already made stays.
"""

from typing import Any

from tfdist.cluster import WorkerLostError
from tfdist.estimator.keras import version as _keras_version

_keras_version.choose()

from tfdist.estimator import experimental, export, inputs  # noqa: E402
from tfdist.estimator.added_metrics import add_metrics  # noqa: E402
from tfdist.estimator.canned import (  # noqa: E402
    BaselineClassifier,
    BaselineEstimator,
    BaselineRegressor,
    DNNClassifier,
    DNNEstimator,
    DNNLinearCombinedClassifier,
    DNNLinearCombinedEstimator,
    DNNLinearCombinedRegressor,
    DNNRegressor,
    LinearClassifier,
    LinearEstimator,
    LinearRegressor,
    classifier_parse_example_spec,
    regressor_parse_example_spec,
)
from tfdist.estimator.checkpoints.damage import CheckpointDamagedError  # noqa: E402
from tfdist.estimator.checkpoints.fit import CheckpointMismatchError  # noqa: E402
from tfdist.estimator.checkpoints.warm_start import VocabInfo, WarmStartSettings  # noqa: E402
from tfdist.estimator.checkpoints.writer import CheckpointSpaceError  # noqa: E402
from tfdist.estimator.compat import enable_compat  # noqa: E402
from tfdist.estimator.estimator import Estimator  # noqa: E402
from tfdist.estimator.evaluation.exporters import (  # noqa: E402
    BestExporter,
    Exporter,
    FinalExporter,
    LatestExporter,
)
from tfdist.estimator.heads import (  # noqa: E402
    BinaryClassHead,
    Head,
    LogisticRegressionHead,
    MultiClassHead,
    MultiHead,
    MultiLabelHead,
    PoissonRegressionHead,
    RegressionHead,
)
from tfdist.estimator.hooks import (  # noqa: E402
    CheckpointSaverHook,
    CheckpointSaverListener,
    DeviceLoggingTensorHook,
    FeedFnHook,
    FinalOpsHook,
    GlobalStepWaiterHook,
    LoggingTensorHook,
    NanLossDuringTrainingError,
    NanTensorHook,
    ProfilerHook,
    SecondOrStepTimer,
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
    StepCounterHook,
    StopAtStepHook,
    SummarySaverHook,
)
from tfdist.estimator.keras.conversion import model_to_estimator  # noqa: E402
from tfdist.estimator.loop.model_check import ModelMismatchError  # noqa: E402
from tfdist.estimator.missing import find_missing  # noqa: E402
from tfdist.estimator.pipelined import (  # noqa: E402
    OptimizerFunctionOutput,
    PipelineEstimatorSpec,
)
from tfdist.estimator.run_config import DeviceConfig, RunConfig  # noqa: E402
from tfdist.estimator.spec import EstimatorSpec, ModeKeys  # noqa: E402
from tfdist.estimator.train_and_evaluate import train_and_evaluate  # noqa: E402
from tfdist.estimator.train_spec import EvalSpec, TrainSpec  # noqa: E402

__all__ = [
    "BaselineClassifier",
    "BaselineEstimator",
    "BaselineRegressor",
    "BestExporter",
    "BinaryClassHead",
    "CheckpointDamagedError",
    "CheckpointMismatchError",
    "CheckpointSaverHook",
    "CheckpointSaverListener",
    "CheckpointSpaceError",
    "DNNClassifier",
    "DNNEstimator",
    "DNNLinearCombinedClassifier",
    "DNNLinearCombinedEstimator",
    "DNNLinearCombinedRegressor",
    "DNNRegressor",
    "DeviceConfig",
    "DeviceLoggingTensorHook",
    "Estimator",
    "EstimatorSpec",
    "EvalSpec",
    "Exporter",
    "FeedFnHook",
    "FinalExporter",
    "FinalOpsHook",
    "GlobalStepWaiterHook",
    "Head",
    "LatestExporter",
    "LinearClassifier",
    "LinearEstimator",
    "LinearRegressor",
    "LoggingTensorHook",
    "LogisticRegressionHead",
    "ModeKeys",
    "ModelMismatchError",
    "MultiClassHead",
    "MultiHead",
    "MultiLabelHead",
    "NanLossDuringTrainingError",
    "NanTensorHook",
    "OptimizerFunctionOutput",
    "PipelineEstimatorSpec",
    "PoissonRegressionHead",
    "ProfilerHook",
    "RegressionHead",
    "RunConfig",
    "SecondOrStepTimer",
    "SessionRunArgs",
    "SessionRunContext",
    "SessionRunHook",
    "SessionRunValues",
    "StepCounterHook",
    "StopAtStepHook",
    "SummarySaverHook",
    "TrainSpec",
    "VocabInfo",
    "WarmStartSettings",
    "WorkerLostError",
    "add_metrics",
    "classifier_parse_example_spec",
    "enable_compat",
    "experimental",
    "export",
    "inputs",
    "model_to_estimator",
    "regressor_parse_example_spec",
    "train_and_evaluate",
]


def __getattr__(name: str) -> Any:
    return find_missing("", name)


def __dir__() -> list[str]:
    return [*__all__]
