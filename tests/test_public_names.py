"""The public names of every package: a name that appears or disappears must be entered here."""

import enum
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from typing import Any

import pytest

import tfdist

# A package's public names are its `__all__`. A change here is a change for users: enter it in
# CHANGELOG.md as well.
PUBLIC = {
    "tfdist": """
        __version__ cluster estimator ipu launch monitoring pipeline strategies testing training
    """,
    "tfdist.cluster": """
        Cluster ClusterError MpiRank PeerWatch RendezvousError Task WorkerLostError
        check_port find_cluster find_mpi_rank format_tf_config meet parse_tf_config
        wait_for_servers
    """,
    "tfdist.estimator": """
        BaselineClassifier BaselineEstimator BaselineRegressor BestExporter BinaryClassHead
        CheckpointDamagedError CheckpointMismatchError CheckpointSaverHook
        CheckpointSaverListener CheckpointSpaceError DNNClassifier
        DNNEstimator DNNLinearCombinedClassifier DNNLinearCombinedEstimator
        DNNLinearCombinedRegressor DNNRegressor DeviceConfig DeviceLoggingTensorHook
        Estimator EstimatorSpec EvalSpec Exporter FeedFnHook FinalExporter FinalOpsHook
        GlobalStepWaiterHook Head LatestExporter LinearClassifier LinearEstimator
        LinearRegressor LoggingTensorHook LogisticRegressionHead ModeKeys ModelMismatchError
        MultiClassHead MultiHead MultiLabelHead NanLossDuringTrainingError NanTensorHook
        OptimizerFunctionOutput PipelineEstimatorSpec PoissonRegressionHead ProfilerHook
        RegressionHead RunConfig SecondOrStepTimer SessionRunArgs SessionRunContext
        SessionRunHook SessionRunValues StepCounterHook StopAtStepHook SummarySaverHook
        TrainSpec VocabInfo WarmStartSettings WorkerLostError add_metrics
        classifier_parse_example_spec enable_compat experimental export inputs
        model_to_estimator regressor_parse_example_spec train_and_evaluate
    """,
    "tfdist.estimator.export": """
        ClassificationOutput EvalOutput ExportOutput PredictOutput RegressionOutput
        ServingInputReceiver SupervisedInputReceiver TensorServingInputReceiver TrainOutput
        UnsupervisedInputReceiver build_parsing_serving_input_receiver_fn
        build_raw_serving_input_receiver_fn build_supervised_input_receiver_fn_from_input_fn
    """,
    "tfdist.estimator.inputs": """
        numpy_input_fn pandas_input_fn
    """,
    "tfdist.estimator.v1": """
        BaselineClassifier BaselineEstimator BaselineRegressor DNNClassifier DNNEstimator
        DNNLinearCombinedClassifier DNNLinearCombinedEstimator DNNLinearCombinedRegressor
        DNNRegressor Estimator LinearClassifier LinearEstimator LinearRegressor experimental
        model_to_estimator tpu
    """,
    "tfdist.ipu": """
        config distributed ipu_estimator ipu_multi_worker_strategy ipu_pipeline_estimator
        ipu_run_config ipu_session_run_hooks ipu_strategy optimizers pipelining_ops popdist
        tensorflow utils
    """,
    "tfdist.ipu.distributed": """
        host_collective_ops popdist_strategy
    """,
    "tfdist.ipu.horovod": """
        Adasum Average Sum allgather allreduce broadcast ddl_built gloo_built gloo_enabled init
        ipu_horovod_strategy is_homogeneous local_rank local_size mlsl_built mpi_built
        mpi_enabled mpi_threads_supported nccl_built popdist_strategy rank shutdown size
    """,
    "tfdist.ipu.optimizers": """
        AutomaticLossScalingOptimizer CrossReplicaGradientAccumulationOptimizerV2
        CrossReplicaOptimizer GradientAccumulationOptimizer GradientAccumulationOptimizerV2
        GradientAccumulationReductionMethod MapGradientOptimizer ShardedOptimizer
    """,
    "tfdist.ipu.popdist": """
        checkNumIpusPerReplica execute_on_instances getDeviceId getInstanceIndex
        getLocalInstanceIndex getNumInstances getNumIpusPerReplica getNumLocalReplicas
        getNumTotalReplicas getReplicaIndexOffset init isPopdistEnvSet synchronize
        tensorflow
    """,
    "tfdist.launch.doctor": """
        main
    """,
    "tfdist.launch.horovod": """
        main
    """,
    "tfdist.launch.kubernetes": """
        main
    """,
    "tfdist.launch.slurm": """
        main
    """,
    "tfdist.monitoring": """
        CsvMetricsHook MemoryHook PrometheusHook ScalarsHook StepProfileHook ThroughputHook
    """,
    "tfdist.pipeline": """
        AutoStage Block DataLoader InferenceModel Options PipelinedExecution Settings
        ShardedExecution Stage TrainingModel begin_block compute_devices inference_model
        remove_blocks set_cpu_devices training_model
    """,
    "tfdist.strategies": """
        DeviceError HorovodNotFoundError HorovodStrategy LocalStrategy MultiWorkerStrategy
        Placement execute_on_instances join_run strategy_for_run synchronize
    """,
    "tfdist.training": """
        AdamW BatchNormalization ClippedOptimizer DistributedOptimizer DynamicLossScale
        FixedLossScale GradientAccumulationOptimizer HistogramLossScale LAMB LARS
        LossScaleOptimizer SGD ScheduledLossScale batch_normalization
        cosine_decay linear_decay polynomial_decay recomputation_checkpoint recompute stepped
        stochastic_round warmup
    """,
    "tfdist.testing": """
        CompletedWorker EngineMissingError FakeCluster ReservedPorts ScriptRun ScriptWorker
        WorkerFailedError WorkerTimeoutError WorkerTracebackError engine_problem
    """,
}
# Packages without public names; `__all__ = []` says so.
INTERNAL = (
    "tfdist.cluster.rendezvous",
    "tfdist.estimator.canned",
    "tfdist.estimator.checkpoints",
    "tfdist.estimator.compat",
    "tfdist.estimator.config",
    "tfdist.estimator.evaluation",
    "tfdist.estimator.graph",
    "tfdist.estimator.heads",
    "tfdist.estimator.keras",
    "tfdist.estimator.loop",
    "tfdist.estimator.pipelined",
    "tfdist.estimator.train",
    "tfdist.profile",
    "tfdist.launch",
    "tfdist.launch.failures",
    "tfdist.launch.functions",
    "tfdist.launch.machine",
    "tfdist.launch.options",
    "tfdist.launch.run",
    "tfdist.launch.screen",
    "tfdist.launch.standby",
    "tfdist.launch.workers",
    "tfdist.pipeline.graph",
    "tfdist.pipeline.timeline",
    "tfdist.process",
    "tfdist.strategies.divided",
    "tfdist.strategies.eager",
    "tfdist.strategies.graph",
    "tfdist.strategies.grpc",
    "tfdist.strategies.horovod",
    "tfdist.strategies.keras",
    "tfdist.strategies.reductions",
    "tfdist.strategies.saving",
    "tfdist.strategies.values",
    "tfdist.training.layers",
    "tfdist.training.optimizers",
    "tfdist.training.wrappers",
)

PACKAGES = ["tfdist"] + [
    module.name for module in pkgutil.walk_packages(tfdist.__path__, "tfdist.") if module.ispkg
]


@pytest.mark.parametrize("name", PACKAGES)
def test_the_public_names_of_a_package_are_those_of_the_table(name: str) -> None:
    package = importlib.import_module(name)
    announced = [] if name in INTERNAL else PUBLIC[name].split()
    assert sorted(package.__all__) == sorted(announced)


@pytest.mark.parametrize("name", PUBLIC)
def test_dir_shows_the_public_names_and_each_is_there(name: str) -> None:
    package = importlib.import_module(name)
    assert set(package.__all__) <= set(dir(package))
    assert all(hasattr(package, public) for public in package.__all__)


@pytest.mark.parametrize("name", PUBLIC)
def test_dir_of_a_package_shows_nothing_else(name: str) -> None:
    package = importlib.import_module(name)
    # In v1, as in tf.compat.v1.estimator, are all names, and some are other classes.
    more = PUBLIC["tfdist.estimator"].split() if name == "tfdist.estimator.v1" else []
    assert sorted(dir(package)) == sorted({*package.__all__, *more})


def test_the_table_has_no_other_packages() -> None:
    assert sorted([*PUBLIC, *INTERNAL]) == sorted(PACKAGES)


@pytest.mark.parametrize("name", PUBLIC)
def test_help_of_each_public_callable_describes_or_names_all_arguments(name: str) -> None:
    package = importlib.import_module(name)
    left = {}
    for public in PUBLIC[name].split():
        one = getattr(package, public)
        text = "\n".join(_documentation(one))
        missing = [arg for arg in _arguments(one) if not re.search(rf"\b{arg}\b", text)]
        if missing:
            left[public] = missing
    assert left == {}


def _arguments(one: Any) -> list[str]:
    """Returns the arguments of a callable of tfdist that a user may give."""
    is_ours = getattr(one, "__module__", "").startswith("tfdist.") and callable(one)
    if not is_ours or inspect.ismodule(one):
        return []
    if isinstance(one, type) and issubclass(one, BaseException | enum.Enum):
        return []
    names = inspect.signature(one).parameters
    return [name for name in names if not name.startswith("_")]


def _documentation(one: Any) -> Iterator[str]:
    """Yields what help() prints of a callable: its docstring, and a constructor's."""
    yield one.__doc__ or ""
    if isinstance(one, type):
        yield from (
            vars(base)["__init__"].__doc__ or ""
            for base in one.__mro__[:-1]
            if "__init__" in vars(base)
        )
