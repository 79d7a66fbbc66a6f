"""A pipeline in half precision: its weights, and what crosses between the host and the stages."""

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1
import tf_keras
from brief_training import Crossings, Fetch, loss_in

import tfdist.estimator as tfe
from tfdist import training
from tfdist.training.precision import find_precision

COUNT, MICRO, STEPS = 4, 8, 8  # Micro-batches in a step, examples in one, and steps.
UNIT = {tf.bfloat16: 2.0**-8, tf.float16: 2.0**-11}

random = np.random.RandomState(0)
X = random.randn(COUNT * MICRO * STEPS, 5).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int32)
WORDS = (9 * random.rand(COUNT * MICRO * STEPS)).astype(np.int32)


def _input_fn(batch: int, with_labels: bool = True) -> Callable[[], tf.data.Dataset]:
    data: Any = ((X, WORDS), Y) if with_labels else ((X, WORDS),)
    return lambda: tf.data.Dataset.from_tensor_slices(data).batch(batch, drop_remainder=True)


def _weight(name: str, *shape: int) -> Any:
    values = np.random.RandomState(len(name)).randn(*shape).astype(np.float32) / 2
    initializer = v1.constant_initializer(values)
    with v1.variable_scope("", reuse=v1.AUTO_REUSE):
        return v1.get_variable(name, shape, initializer=initializer)


class _Stages:
    """Two stages that share a table; `dtypes` is what the first one hands on."""

    def __init__(self, half: tf.DType) -> None:
        self.half = half
        self.dtypes: set[tf.DType] = set()

    def first(self, features: Any, labels: Any = None) -> Any:
        x, words = features
        hidden = tf.nn.relu(tf.matmul(tf.cast(x, self.half), _weight("first", 5, 4)))
        hidden += tf.gather(_weight("table", 9, 4), words)  # [micro_batch, 4]
        self.dtypes.add(hidden.dtype)
        return (hidden,) if labels is None else (hidden, labels)

    def second(self, hidden: Any, labels: Any = None) -> Any:
        start = tf_keras.initializers.RandomNormal(seed=1)
        hidden = tf_keras.layers.Dense(4, "tanh", kernel_initializer=start, name="dense")(hidden)
        hidden = tf.matmul(hidden, _weight("table", 9, 4), transpose_b=True)
        logits = tf.cast(tf.matmul(hidden, _weight("last", 9, 2)), tf.float32)
        return logits if labels is None else (logits, labels)


def _loss(logits: Any, labels: Any) -> Any:
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    return tf.reduce_mean(losses)


def _optimizer() -> Any:
    return training.LossScaleOptimizer(training.SGD(0.2), training.FixedLossScale(128))


def _pipelined(stages: _Stages, **spec: Any) -> Callable[..., tfe.PipelineEstimatorSpec]:
    return lambda mode: tfe.PipelineEstimatorSpec(
        mode=mode,
        computational_stages=[stages.first, stages.second],
        gradient_accumulation_count=COUNT,
        optimizer_function=lambda *outputs: tfe.OptimizerFunctionOutput(
            _optimizer(), _loss(*outputs)
        ),
        eval_metrics_fn=lambda *outputs: {"loss": _loss(*outputs)},
        **spec,
    )


def _plain(stages: _Stages) -> Callable[..., tfe.EstimatorSpec]:
    def model_fn(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
        loss = _loss(*stages.second(*stages.first(features, labels)))
        optimizer = _optimizer()
        gradients, weights = zip(*optimizer.compute_gradients(loss), strict=True)

        def update(*on_host: Any) -> Any:
            return optimizer.apply_gradients(zip(on_host, weights, strict=True))

        return tfe.EstimatorSpec(mode, loss=loss, host_call=(update, gradients))

    return model_fn


def _train(
    make: Callable[..., Any],
    folder: Path,
    batch: int,
    device: dict[str, Any],
    hook: Any,
    steps: int = STEPS,
    **spec: Any,
) -> tuple[tfe.Estimator, _Stages]:
    stages = _Stages(find_precision(device["precision"]).compute)
    config = tfe.RunConfig(device=tfe.DeviceConfig(**device), tf_random_seed=3)
    estimator = tfe.Estimator(make(stages, **spec), folder, config)
    return estimator.train(_input_fn(batch), hooks=[hook], steps=steps), stages


def _values(estimator: tfe.Estimator) -> dict[str, Any]:
    return {name: estimator.get_variable_value(name) for name in estimator.get_variable_names()}


@pytest.fixture(scope="module")
def trained_plainly(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Any]]:
    """The weights of the model with `host_call`, which takes the whole batch of each step."""

    @cache
    def trained_plainly(precision: str) -> dict[str, Any]:
        folder, device = tmp_path_factory.mktemp("plain"), {"precision": precision}
        return _values(_train(_plain, folder, COUNT * MICRO, device, Fetch(loss_in))[0])

    return trained_plainly


@pytest.fixture(scope="module")
def briefly(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Makes one step of a pipeline, and returns it with what crossed and its stages.

    In mixed_float16 it has recomputation.
    """

    @cache
    def briefly(precision: str) -> Any:
        folder, hook, device = (
            tmp_path_factory.mktemp("brief"),
            Crossings(),
            {"precision": precision},
        )
        spec = {"recomputation": precision == "mixed_float16"}
        estimator, stages = _train(_pipelined, folder, MICRO, device, hook, steps=1, **spec)
        return estimator, hook, stages

    return briefly


@pytest.mark.parametrize(
    ("precision", "device", "spec"),
    [
        ("bfloat16", {}, {}),
        ("16.32", {"iterations_per_loop": 2}, {"pipeline_schedule": "grouped"}),
        (
            "mixed_bfloat16",
            {"num_replicas": 2, "variables_on_host": False},
            {"pipeline_schedule": "sequential"},
        ),
        ("16.16", {"num_replicas": 2}, {"recomputation": True}),
    ],
    ids=str,
)
def test_a_pipeline_has_the_weights_of_one_device_to_the_precision_of_the_half(
    tmp_path: Path, trained_plainly: Any, precision: str, device: Any, spec: Any
) -> None:
    batch, hook = MICRO // device.get("num_replicas", 1), Fetch(loss_in)
    device = {"precision": precision, **device}
    estimator, stages = _train(_pipelined, tmp_path, batch, device, hook, **spec)
    numbers = find_precision(precision)
    assert stages.dtypes == {numbers.compute}
    found, expected = _values(estimator), trained_plainly(precision)
    assert found.keys() == expected.keys() > {"first", "table", "last", "dense/kernel"}
    for name in ("first", "table", "last", "dense/kernel"):
        assert found[name].dtype == numbers.weights.as_numpy_dtype, name
        value = expected[name].astype(np.float64)
        # Weights in half are rounded by chance, in each step.
        units = STEPS if numbers.has_half_weights else 2
        atol = units * UNIT.get(numbers.compute, 1e-6) * np.abs(value).max()
        np.testing.assert_allclose(found[name], value, atol=atol, err_msg=name)
    assert hook.values[-1] < hook.values[0]


@pytest.mark.parametrize("precision", ["mixed_bfloat16", "mixed_float16", "bfloat16"])
def test_weights_cross_in_half_once_a_step_and_sums_of_gradients_in_float32(
    briefly: Any, precision: str
) -> None:
    _, hook, _ = briefly(precision)
    half = find_precision(precision).compute
    weights = [(name, dtype) for name, dtype, path in hook.sent if re.match("Cast|Ensure", name)]
    # The first stage has one weight, and the second four; rows of the table are gathered.
    to_stages = {one for one in hook.sent if one[2] in ("01", "02") and one[1].is_floating}
    assert sum(path == "01" and dtype == half for _, dtype, path in to_stages) == 1, to_stages
    assert sum(path == "02" and dtype == half for _, dtype, path in to_stages) == 4, to_stages
    assert {dtype for _, dtype in weights} == {half}, weights
    # Activations go down in half, and their gradients go up.
    assert {dtype for _, dtype, path in hook.sent if path == "12" and dtype.is_floating} == {half}
    sums = {dtype for name, dtype, path in hook.sent if path in ("10", "20") and "mul" in name}
    assert sums == {tf.float32}


@pytest.mark.parametrize("precision", ["mixed_bfloat16", "bfloat16"])
def test_evaluation_and_prediction_compute_in_half(briefly: Any, precision: str) -> None:
    estimator, _, stages = briefly(precision)
    stages.dtypes.clear()
    loss = estimator.evaluate(_input_fn(MICRO))["loss"]
    assert np.isfinite(loss)
    prediction = next(iter(estimator.predict(lambda: _input_fn(MICRO, with_labels=False)())))
    assert prediction.shape == (2,)
    assert stages.dtypes == {tf.bfloat16}


def test_rounding_to_nearest_can_be_asked_for(tmp_path: Path, briefly: Any) -> None:
    by_chance = _values(briefly("bfloat16")[0])
    device = {"precision": "bfloat16", "stochastic_rounding": False}
    hook = Fetch(loss_in)
    nearest = _values(_train(_pipelined, tmp_path, MICRO, device, hook, steps=1)[0])
    assert (by_chance["table"] != nearest["table"]).any()
    assert "stochastic_rounding_seed" in by_chance
    assert "stochastic_rounding_seed" not in nearest
