"""Models in float64 have rates, means and scales in float64, in all layouts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

import tfdist.estimator as tfe
from tfdist.training import SGD, AdamW, ClippedOptimizer, FixedLossScale, LossScaleOptimizer
from tfdist.training.schedules import linear_decay, stepped, warmup

RANDOM = np.random.default_rng(0)
X, Y = RANDOM.normal(size=(48, 3)), RANDOM.normal(size=(48, 1))
RATE = 0.1  # Not exact in float32, as 1 / 3 and 1 / 1000.


def _expected(counts: Any, limit: float = np.inf) -> Any:
    """Returns the weights after steps whose gradients are clipped to a norm."""
    weight = np.ones((3, 1))
    for first in range(0, 48, 12):
        x, y, count = (part[first : first + 12] for part in (X, Y, counts))
        gradient = 2 * x.T @ (count * (x @ weight - y)) / count.sum()
        weight = weight - RATE * min(1.0, limit / np.linalg.norm(gradient)) * gradient
    return weight


def _counts(is_weighted: bool) -> Any:
    return RANDOM.integers(1, 9, (48, 1)).astype(float) if is_weighted else np.ones((48, 1))


def _input_fn(counts: Any, batch: int) -> Callable[[], tf.data.Dataset]:
    return lambda: tf.data.Dataset.from_tensor_slices(((X, counts), Y)).batch(batch, True)


def _train(folder: Path, optimizer: Any, counts: Any, *, is_reported: bool, **layout: int) -> Any:
    def model_fn(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
        x, count = features
        weight = v1.get_variable("w", [3, 1], tf.float64, initializer=v1.ones_initializer())
        total = tf.reduce_sum(count)  # []
        loss = tf.reduce_sum(count * tf.square(tf.matmul(x, weight) - labels)) / total
        gradients, variables = zip(*optimizer.compute_gradients(loss), strict=True)

        def update(*on_host: Any) -> Any:
            return optimizer.apply_gradients(zip(on_host, variables, strict=True))

        reported = {"loss_weight": total} if is_reported else {}
        return tfe.EstimatorSpec(mode, loss=loss, host_call=(update, gradients), **reported)

    shares = layout.get("num_replicas", 1) * layout.get("gradient_accumulation", 1)
    estimator = tfe.Estimator(model_fn, folder, tfe.RunConfig(device=tfe.DeviceConfig(**layout)))
    estimator.train(_input_fn(counts, 12 // shares))
    return estimator.get_variable_value("w")


@pytest.mark.parametrize(
    ("make", "layout", "is_weighted"),
    [
        (lambda: SGD(RATE), {"gradient_accumulation": 3}, False),
        (lambda: SGD(RATE), {"gradient_accumulation": 3}, True),
        (lambda: SGD(stepped({0: RATE})), {"num_replicas": 3}, True),
        (lambda: LossScaleOptimizer(SGD(RATE), FixedLossScale(1000)), {}, True),
        (lambda: ClippedOptimizer(SGD(RATE), 1e9), {"num_replicas": 3}, False),
    ],
    ids=["micro-batches", "weighted", "replicas", "scaled", "clipped"],
)
def test_layouts_give_numpys_weights(
    tmp_path: Path, make: Callable[[], Any], layout: dict[str, int], is_weighted: bool
) -> None:
    counts = _counts(is_weighted)
    got = _train(tmp_path, make(), counts, is_reported=is_weighted, **layout)
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, _expected(counts), rtol=0, atol=1e-14)


def test_a_norm_is_float64_where_it_clips(tmp_path: Path) -> None:
    counts = _counts(is_weighted=False)
    got = _train(tmp_path, ClippedOptimizer(SGD(RATE), 0.3), counts, is_reported=False)
    np.testing.assert_allclose(got, _expected(counts, limit=0.3), rtol=0, atol=1e-14)


@pytest.mark.parametrize("is_weighted", [False, True])
def test_a_pipeline_gives_numpys_weights(tmp_path: Path, is_weighted: bool) -> None:
    def first(features: Any, labels: Any) -> Any:
        x, count = features
        weight = v1.get_variable("w", [3, 1], tf.float64, initializer=v1.ones_initializer())
        return tf.matmul(x, weight), count, labels

    def second(product: Any, count: Any, labels: Any) -> Any:
        total = tf.reduce_sum(count)  # []
        return tf.reduce_sum(count * tf.square(product - labels)) / total, total

    def update(loss: Any, total: Any) -> tfe.OptimizerFunctionOutput:
        return tfe.OptimizerFunctionOutput(
            SGD(RATE), loss, loss_weight=total if is_weighted else None
        )

    def model_fn(mode: str) -> tfe.PipelineEstimatorSpec:
        return tfe.PipelineEstimatorSpec(
            mode=mode,
            computational_stages=[first, second],
            gradient_accumulation_count=3,
            optimizer_function=update,
        )

    counts = _counts(is_weighted)
    estimator = tfe.Estimator(model_fn, tmp_path).train(_input_fn(counts, 4))
    got = estimator.get_variable_value("w")
    np.testing.assert_allclose(got, _expected(counts), rtol=0, atol=1e-14)


@pytest.mark.parametrize("bias_correction", [True, False])
def test_adamw_has_powers_in_float64(take: Any, bias_correction: bool) -> None:
    gradients = RANDOM.normal(size=(9, 4))
    optimizer = AdamW(RATE, bias_correction=bias_correction, weight_decay=0.3)
    got = take(optimizer, {"w": np.ones(4)}, [{"w": g} for g in gradients], dtype=np.float64)
    weight, m, v = np.ones(4), 0.0, 0.0
    for number, gradient in enumerate(gradients, start=1):
        m, v = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2
        m_hat, v_hat = m, v
        if bias_correction:
            m_hat, v_hat = m / (1 - 0.9**number), v / (1 - 0.999**number)
        direction = m_hat / (np.sqrt(v_hat) + 1e-6)
        weight = weight - RATE * (direction + 0.3 * weight)
    np.testing.assert_allclose(got["w"], weight, rtol=1e-12)


def test_schedules_of_schedules_are_exact_and_callers_get_float32() -> None:
    schedule = warmup(linear_decay(RATE, 9), 3)
    assert schedule(2).dtype == tf.float32
    exact = schedule.exact(2)  # type: ignore[attr-defined]
    assert float(exact) == pytest.approx(2 / 3 * RATE * (1 - 3 / 9), rel=1e-15)
