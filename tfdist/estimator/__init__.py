"""The Estimator API on stock TensorFlow, with host_call.

Names, arguments, files and log lines are as in tf.estimator. Importing this package makes
`tf.keras` Keras 2 (tf-keras), because its layers build v1 graphs. A choice that the user has
already made stays.
"""

from typing import Any

from tfdist.estimator.keras import version as _keras_version

_keras_version.choose()  # TensorFlow, which the next lines import, reads the choice.

from tfdist.cluster import WorkerLostError
from tfdist.estimator import experimental, export, inputs
from tfdist.estimator.added_metrics import add_metrics
from tfdist.estimator.canned.baseline import (
    BaselineClassifier,
    BaselineEstimator,
    BaselineRegressor,
)
from tfdist.estimator.canned.dnn import DNNClassifier, DNNEstimator, DNNRegressor
from tfdist.estimator.canned.dnn_linear_combined import (
    DNNLinearCombinedClassifier,
    DNNLinearCombinedEstimator,
    DNNLinearCombinedRegressor,
)
from tfdist.estimator.canned.feature_columns import (
    classifier_parse_example_spec,
    regressor_parse_example_spec,
)
from tfdist.estimator.canned.linear import LinearClassifier, LinearEstimator, LinearRegressor
from tfdist.estimator.checkpoints.fit import CheckpointMismatchError
from tfdist.estimator.checkpoints.warm_start import VocabInfo, WarmStartSettings
from tfdist.estimator.compat.enabling import enable_compat
from tfdist.estimator.config.device_config import DeviceConfig
from tfdist.estimator.config.run_config import RunConfig
from tfdist.estimator.estimator import Estimator
from tfdist.estimator.evaluation.exporters import (
    BestExporter,
    Exporter,
    FinalExporter,
    LatestExporter,
)
from tfdist.estimator.heads.classification import BinaryClassHead, MultiClassHead
from tfdist.estimator.heads.head import Head
from tfdist.estimator.heads.multi_head import MultiHead
from tfdist.estimator.heads.multi_label import MultiLabelHead
from tfdist.estimator.heads.regression import (
    LogisticRegressionHead,
    PoissonRegressionHead,
    RegressionHead,
)
from tfdist.estimator.hooks import (
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
from tfdist.estimator.keras.conversion import model_to_estimator
from tfdist.estimator.loop.model_check import ModelMismatchError
from tfdist.estimator.missing import find_missing
from tfdist.estimator.pipelined.spec import OptimizerFunctionOutput, PipelineEstimatorSpec
from tfdist.estimator.spec import EstimatorSpec, ModeKeys
from tfdist.estimator.train.train_and_evaluate import train_and_evaluate
from tfdist.estimator.train.train_spec import EvalSpec, TrainSpec
from tfdist.strategies.saving.checkpoint_files import CheckpointDamagedError
from tfdist.strategies.saving.disk_space import CheckpointSpaceError

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
