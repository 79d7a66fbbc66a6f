"""Errors and lines in the log that name what the original has and tfdist does not."""

from collections.abc import Callable
from typing import Any, cast

import pytest
import tensorflow as tf

from tfdist import training
from tfdist.ipu import (
    config,
    ipu_estimator,
    ipu_pipeline_estimator,
    ipu_run_config,
    optimizers,
    pipelining_ops,
    utils,
)
from tfdist.ipu import tensorflow as originals_tf
from tfdist.ipu.distributed.popdist_strategy import PopDistStrategy
from tfdist.ipu.ipu_session_run_hooks import IPULoggingTensorHook
from tfdist.ipu.strategy_contract import device_for


def _devices(number: int) -> utils.IPUConfig:
    return utils.auto_select_ipus(utils.create_ipu_config(), number)


def _estimator(params: Any) -> Any:
    return ipu_estimator.IPUEstimator(lambda features, params: None, params=params)


def _pipeline(**options: Any) -> Any:
    make = ipu_pipeline_estimator.IPUPipelineEstimatorSpec
    return make("train", [lambda x: x] * 2, 4, optimizer_function=print, **options)


def _accumulate(number: Any, **options: Any) -> Any:
    return optimizers.GradientAccumulationOptimizerV2(training.SGD(1.0), number, **options)


def _scale(**options: Any) -> Any:
    optimizer = tf.compat.v1.train.GradientDescentOptimizer(1.0)
    return optimizers.AutomaticLossScalingOptimizer(optimizer, **options)


def _map(optimizer: Any, function: Any = print) -> Any:
    return optimizers.MapGradientOptimizer(optimizer, function)


_GROUP_SIZE = "norms.experimental.distributed_batch_norm_replica_group_size"


def _set(name: str, value: Any) -> None:
    *groups, last = name.split(".")
    options: Any = config.IPUConfig()
    for group in groups:
        options = getattr(options, group)
    setattr(options, last, value)


_RunConfig = ipu_run_config.IPURunConfig
_ORDER = r"Write \w+\(MapGradientOptimizer\(optimizer, func"
REFUSED: dict[type[Exception], list[tuple[Callable[[], Any], str]]] = {
    ValueError: [
        (lambda: _estimator([1]), r"`params` is expected to be of type `dict`, got \[1\]"),
        (lambda: _estimator({"input_fn": 1}), r"\['input_fn'\] are reserved keys"),
        (lambda: _pipeline(pipeline_schedule="Both"), "'Both' is not a valid PipelineSchedule"),
        (lambda: _pipeline(inputs=[1]), "got 1 inputs, and the first stage gets what"),
        (lambda: _scale(initial_loss_scaling_factor=0), "initial_loss.* must be .* above 0"),
        (lambda: _scale(initial_loss_scaling_factor=16384), "initial_.* below 16384, got 16384"),
        (lambda: _scale(update_frequency=0), "update_frequency must be an integer .* 1, got 0"),
        (lambda: _scale(increase_factor=-2), "increase_factor must be .* above 0, got -2"),
        (lambda: _scale(decrease_factor=0), "decrease_factor must be .* above 0 .* got 0"),
        (lambda: _scale(decrease_factor=2), "decrease_factor must be .* below 2, got 2"),
        (lambda: _scale(max_loss_scaling_factor=1), "max_loss_.* must be .* above 1, got 1"),
        (lambda: _scale(ratio_threshold=1), "ratio_threshold must be .* below 1, got 1"),
        (lambda: _accumulate(2, reduction_method="MAX"), "Cannot parse 'MAX' as one of SUM, MEAN"),
        (lambda: _map(_accumulate(2)), _ORDER),
        (lambda: _map(_scale()), _ORDER),
        (lambda: device_for("/device:IPU:1"), "'/device:IPU:1', and a worker has one device"),
        (lambda: PopDistStrategy("/device:IPU:1"), "ipu_device is '/device:IPU:1'"),
        (lambda: PopDistStrategy("", False), "add_ipu_cross_replica_reductions is False, and"),
        (lambda: _RunConfig(num_shards=2), "IPURunConfig got .*Set them to 1 and 0"),
        (lambda: _RunConfig(ordinal=1), "IPURunConfig got .*Set them to 1 and 0"),
        (lambda: _RunConfig(autosharding=True), "autosharding=True, and a model is not divided"),
        (lambda: _RunConfig(num_replicas=2), "more than one device .* ipu_options is None"),
        (lambda: _RunConfig(1, _devices(2), 3), "with 3 devices .* configured with 2 devices"),
        (lambda: ipu_run_config.RunConfig(master="grpc://a:1"), "master='grpc://a:1' is not sup"),
        (lambda: _devices(0), "auto_select_ipus got num_ipus=0"),
        (lambda: utils.select_ipus(config.IPUConfig(), []), "num_ipus=0"),
        (lambda: _set(_GROUP_SIZE, 0), "group_size must be an integer of at least 1, got 0"),
        (lambda: _set("auto_select_ipus", 0), "auto_select_ipus must be an integer .* got 0"),
        (lambda: IPULoggingTensorHook(1, replication_factor=2), "replication_factor is 2; only 1"),
    ],
    TypeError: [
        (lambda: _map(training.SGD(1.0), 3), "gradient_mapping_function must be .* got 3"),
        (
            lambda: _RunConfig(1, cast(Any, "none")),
            "ipu_options must be an IPUConfig instance, got 'none'",
        ),
        (lambda: _set("allow_recompute", 1), "allow_recompute must be True or False, got 1"),
        (lambda: _set("floating_point_behaviour.esr", "ON"), "esr must be a Stoch.* got 'ON'"),
    ],
    AttributeError: [
        (lambda: originals_tf.no_such_name, "no_such_name"),
        (lambda: utils.extract_all_events, "extract_all_events is not supported: write hooks"),
        (lambda: utils.set_reports, "no attribute 'set_reports'"),
        (lambda: _set("allow_recomputing", 1), "no option allow_recomputing. Did you mean allow_"),
        (lambda: _set("floating_point_behaviour.ers", 1), "floating_point_behaviour.ers. Did"),
    ],
    NotImplementedError: [
        (lambda: pipelining_ops.pipeline([], 4), r"Return IPUPipelineEstimatorSpec\(mode"),
    ],
}


@pytest.mark.parametrize(
    ("error", "use", "message"),
    [(error, *row) for error, rows in REFUSED.items() for row in rows],
    ids=[message for rows in REFUSED.values() for _, message in rows],
)
def test_what_cannot_be_had_is_refused_with_the_reason(
    error: type[Exception], use: Callable[[], Any], message: str
) -> None:
    with pytest.raises(error, match=message):
        use()


_WITHOUT = "no effect without an IPU"
LOGGED = [
    (
        lambda: _RunConfig(compile_summary=True, autosharding=False),
        f"IPURunConfig: {_WITHOUT}: compile_summary.",
    ),
    (
        lambda: utils.select_ipus(config.IPUConfig(), [0, 2, 4]).configure_ipu_system(),
        f"IPUConfig: {_WITHOUT}: select_ipus.",
    ),
    (
        lambda: utils.set_report_options(config.IPUConfig(), report_options={"a": "b"}),
        f"set_report_options: {_WITHOUT}: report_options.",
    ),
    (
        lambda: utils.create_ipu_config(profiling=True, enable_ipu_events=False),
        f"create_ipu_config: {_WITHOUT}: enable_ipu_events, profiling.",
    ),
    (
        lambda: PopDistStrategy(enable_keras_extensions=False),
        f"PopDistStrategy: {_WITHOUT}: enable_keras_extensions.",
    ),
    (
        lambda: optimizers.CrossReplicaGradientAccumulationOptimizerV2(
            training.SGD(1.0), 2, offload_weight_update_variables=False, dtype=tf.float16
        ),
        f"CrossReplicaGradientAccumulationOptimizerV2: {_WITHOUT}: "
        "offload_weight_update_variables, dtype.",
    ),
    (
        lambda: optimizers.ShardedOptimizer(training.SGD(1.0)),
        "ShardedOptimizer has no effect: updates run where their variables are.",
    ),
]


@pytest.mark.parametrize(("use", "line"), LOGGED, ids=[line for _, line in LOGGED])
def test_what_has_no_effect_is_said_in_one_line(
    logged: list[str], use: Callable[[], Any], line: str
) -> None:
    use()
    assert logged == [line]
    config.IPUConfig().configure_ipu_system()
