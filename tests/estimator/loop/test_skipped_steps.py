"""A training with a loss scale says which steps it skips, and ends only if none can be taken."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

import tfdist.estimator as tfe
from tfdist.training import (
    SGD,
    ClippedOptimizer,
    DynamicLossScale,
    FixedLossScale,
    GradientAccumulationOptimizer,
    LossScaleOptimizer,
)

FINITE, BAD = [1.0, 2.0], [np.inf, 1.0]
OF_STEP_2 = "step 2 skipped: the gradient of layer/kernel is not finite; loss scale 32768 -> 16384"


def _train(
    folder: Path,
    batches: Any,
    make_optimizer: Callable[[], Any],
    *,
    iterations: int = 1,
    uses_host_call: bool = True,
) -> tfe.Estimator:
    def model_fn(features: Any, mode: str) -> tfe.EstimatorSpec:
        with v1.variable_scope("layer"):
            kernel = v1.get_variable("kernel", [2], initializer=v1.zeros_initializer())
            bias = v1.get_variable("bias", [], initializer=v1.zeros_initializer())
        loss = tf.reduce_sum(kernel * features) + bias  # 0 x infinity is NaN.
        optimizer = make_optimizer()
        if not uses_host_call:
            train_op = optimizer.minimize(loss, v1.train.get_global_step())
            return tfe.EstimatorSpec(mode, loss=loss, train_op=train_op)
        gradients, variables = zip(*optimizer.compute_gradients(loss), strict=True)

        def update(*on_host: Any) -> Any:
            return optimizer.apply_gradients(zip(on_host, variables, strict=True))

        return tfe.EstimatorSpec(mode, loss=loss, host_call=(update, gradients))

    config = tfe.RunConfig(
        save_summary_steps=1,
        log_step_count_steps=None,
        device=tfe.DeviceConfig(iterations_per_loop=iterations),
    )
    estimator = tfe.Estimator(model_fn, folder, config)
    estimator.train(lambda: tf.data.Dataset.from_tensor_slices(np.float32(batches)))
    return estimator


def _skipped(logged: list[str]) -> list[str]:
    return [line for line in logged if line.startswith("step ")]


@pytest.mark.parametrize(("iterations", "uses_host_call"), [(1, False), (1, True), (3, True)])
def test_a_skipped_step_is_named_and_a_nan_loss_in_it_ends_nothing(
    tmp_path: Path, logged: list[str], iterations: int, uses_host_call: bool
) -> None:
    options = {"iterations": iterations, "uses_host_call": uses_host_call}
    batches = [FINITE, BAD, FINITE, FINITE, FINITE, FINITE]
    estimator = _train(tmp_path, batches, lambda: LossScaleOptimizer(SGD(1.0)), **options)
    np.testing.assert_array_equal(estimator.get_variable_value("layer/kernel"), [-5, -10])
    assert estimator.get_variable_value("global_step") == 6
    assert estimator.get_variable_value("loss_scale/good_steps") == 4
    assert _skipped(logged) == [OF_STEP_2]


@pytest.mark.parametrize(("bad", "iterations"), [(0, 1), (1, 2), (2, 1)])
def test_a_bad_micro_batch_of_an_accumulating_optimizer_skips_its_step(
    tmp_path: Path, logged: list[str], bad: int, iterations: int
) -> None:
    batches = [FINITE] * 12
    batches[3 + bad] = [np.nan, 1.0]
    estimator = _train(
        tmp_path,
        batches,
        lambda: GradientAccumulationOptimizer(LossScaleOptimizer(SGD(1.0)), 3),
        iterations=iterations,
        uses_host_call=False,
    )
    np.testing.assert_array_equal(estimator.get_variable_value("layer/kernel"), [-3, -6])
    assert estimator.get_variable_value("global_step") == 4
    assert _skipped(logged) == [OF_STEP_2]


def test_a_nan_loss_with_finite_gradients_still_ends_an_accumulated_step(tmp_path: Path) -> None:
    def make_optimizer() -> Any:
        optimizer = LossScaleOptimizer(SGD(1.0))
        compute = optimizer.compute_gradients

        def finite(*args: Any, **kwargs: Any) -> Any:
            return [(tf.zeros_like(g), v) for g, v in compute(*args, **kwargs)]

        optimizer.compute_gradients = finite
        return GradientAccumulationOptimizer(optimizer, 2)

    with pytest.raises(tfe.NanLossDuringTrainingError):
        _train(tmp_path, [FINITE, FINITE, BAD, FINITE], make_optimizer, uses_host_call=False)


def test_the_scale_and_the_skipped_steps_are_summaries(tmp_path: Path, read_events: Any) -> None:
    _train(tmp_path, [FINITE, BAD, BAD], lambda: LossScaleOptimizer(SGD(1.0)))
    events = read_events(tmp_path)
    assert [value for _, value in events["loss_scale"]] == [32768, 16384, 8192]
    assert [value for _, value in events["skipped_steps"]] == [0, 1, 2]


def test_lines_about_skipped_steps_come_every_ten_seconds_with_their_number(
    tmp_path: Path, logged: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([100.0, 103.0, 109.9, 110.1, 111.0, 112.0])
    monkeypatch.setattr("tfdist.estimator.loop.skipped_steps.monotonic", lambda: next(times))
    _train(tmp_path, [BAD] * 6, lambda: LossScaleOptimizer(SGD(1.0), FixedLossScale(8)))
    text = "step {} skipped: the gradient of layer/kernel is not finite; loss scale 8"
    assert _skipped(logged) == [
        text.format(1),
        text.format(4) + " (2 more since the last such line)",
        text.format(6) + " (1 more since the last such line)",
    ]


@pytest.mark.parametrize("rule", [DynamicLossScale(initial_scale=4.0), FixedLossScale(4.0)])
def test_twenty_skipped_steps_with_the_lowest_scale_end_the_run(tmp_path: Path, rule: Any) -> None:
    def make_optimizer() -> LossScaleOptimizer:
        return LossScaleOptimizer(SGD(1.0), rule)

    above = 2 if isinstance(rule, DynamicLossScale) else 0  # Steps with the scales 4 and 2.
    _train(tmp_path / "enough", [BAD] * (19 + above), make_optimizer)
    message = r"20 steps in a row .* not finite is the gradient of layer/kernel\. Lower"
    with pytest.raises(tfe.NanLossDuringTrainingError, match=message):
        _train(tmp_path / "ends", [BAD] * (20 + above), make_optimizer)


def test_a_nan_loss_with_finite_gradients_ends_the_run(tmp_path: Path) -> None:
    def make_optimizer() -> LossScaleOptimizer:
        return LossScaleOptimizer(SGD(1e38), FixedLossScale(1))

    with pytest.raises(tfe.NanLossDuringTrainingError):
        _train(tmp_path, [FINITE, [1e38, -3e38]], make_optimizer)


def test_a_training_resumes_with_its_scale_one_step_after_an_overflow(
    tmp_path: Path, weights: Any
) -> None:
    batches = [FINITE, FINITE, BAD, FINITE, FINITE, FINITE, BAD, FINITE]

    def make_optimizer() -> LossScaleOptimizer:
        inner = ClippedOptimizer(SGD(0.3, momentum=0.9), 0.5)
        return LossScaleOptimizer(inner, DynamicLossScale(growth_steps=2))

    undisturbed = weights(_train(tmp_path / "one", batches, make_optimizer))
    _train(tmp_path / "two", batches[:3], make_optimizer)
    resumed = weights(_train(tmp_path / "two", batches[3:], make_optimizer))
    assert undisturbed["loss_scale/skipped_steps"] == 2
    np.testing.assert_equal(resumed, undisturbed)
