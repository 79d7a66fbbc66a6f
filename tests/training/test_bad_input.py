"""Values that optimizers, wrappers and schedules refuse, in one line that names the value."""

import math
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist import training
from tfdist.training import (
    LAMB,
    LARS,
    SGD,
    AdamW,
    ClippedOptimizer,
    DistributedOptimizer,
    DynamicLossScale,
    FixedLossScale,
    GradientAccumulationOptimizer,
    HistogramLossScale,
    LossScaleOptimizer,
    ScheduledLossScale,
    linear_decay,
    stepped,
    warmup,
)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LAMB(-1), "learning_rate must be a finite number at least 0, got -1"),
        (lambda: SGD(math.nan), "learning_rate must be a finite number at least 0, got nan"),
        (lambda: SGD("0.1"), "learning_rate must be a finite number at least 0, got '0.1'"),
        (lambda: SGD(True), "learning_rate .* got True"),
        (lambda: LAMB(beta_1=1), "beta_1 must be a finite number at least 0 and below 1, got 1"),
        (lambda: AdamW(beta_2=-0.1), "beta_2 must be .* got -0.1"),
        (lambda: AdamW(epsilon=math.inf), "epsilon must be .* got inf"),
        (lambda: AdamW(weight_decay=-1), "weight_decay must be .* got -1"),
        (lambda: LAMB(max_weight_norm=0), "max_weight_norm must be .* above 0, got 0"),
        (lambda: LARS(momentum=1.0), "momentum must be .* below 1, got 1.0"),
        (lambda: LARS(eeta=0), "eeta must be .* above 0, got 0"),
        (lambda: SGD(nesterov=True), "nesterov=True needs a momentum above 0"),
        (lambda: ClippedOptimizer(SGD(1), 0), "global_norm must be .* above 0, got 0"),
        (lambda: LAMB(exclude_from_weight_decay=["*b"]), r"'\*b', which is not a regular expr"),
        (lambda: warmup(0.1, -1), "steps of warmup must be an integer of at least 0, got -1"),
        (lambda: warmup(-0.1, 1), "rate of warmup must be .* got -0.1"),
        (lambda: linear_decay(0.1, 5, first_step=5), "steps must be .* at least 6, got 5"),
        (lambda: linear_decay(0.1, 2.5), "steps must be an integer of at least 1, got 2.5"),
        (lambda: stepped({5: 0.1}), r"must increase from 0 on, got \[5\]"),
        (lambda: stepped({0: 0.1, 9: -1}), "the rate from step 9 on must be .* got -1"),
        (lambda: FixedLossScale(0), "a fixed loss scale must be a finite number above 0 .* got 0"),
        (lambda: FixedLossScale(4e38), "loss scale must be .* below 8.50706e.37, got 4e.38"),
        (lambda: FixedLossScale(2.0**126), "loss scale must be .* below 8.50706e.37, got 8.507"),
        (lambda: FixedLossScale("yes"), "a fixed loss scale must be .* got 'yes'"),
        (lambda: ScheduledLossScale({0: 1, 5: 2.0**126}), "from step 5 on must be .* below 8.5"),
        (lambda: ScheduledLossScale({5: 1}), r"loss scales must increase from 0 on, got \[5\]"),
        (lambda: ScheduledLossScale({0: -1}), "scale from step 0 on must be .* above 0 .* got -1"),
        (lambda: DynamicLossScale(initial_scale=2.0**126), "initial_scale must be .* below 8.5"),
        (lambda: DynamicLossScale(max_scale=2.0**126), "max_scale must be .* below 8.50706e.37"),
        (lambda: DynamicLossScale(initial_scale=math.nan), "initial_scale must be .* got nan"),
        (lambda: DynamicLossScale(initial_scale=0.5), "and max_scale, got 0.5 and 1 to "),
        (lambda: DynamicLossScale(max_scale=8), "and max_scale, got 32768 and 1 to 8"),
        (lambda: DynamicLossScale(min_scale=0), "min_scale must be .* above 0 .* got 0"),
        (lambda: DynamicLossScale(growth_steps=0), "growth_steps must be an integer of at least 1"),
        (lambda: DynamicLossScale(growth_factor=1), "growth_factor must be .* above 1, got 1"),
        (lambda: DynamicLossScale(backoff_factor=1), "backoff_factor must be .* below 1, got 1"),
        (lambda: HistogramLossScale(initial_scale=2**15), "below max_scale, got 32768 and 1 to 32"),
        (lambda: HistogramLossScale(decrease_factor=2), "decrease_factor must be .* below 2"),
        (lambda: HistogramLossScale(ratio_threshold=1), "ratio_threshold must be .* below 1"),
    ],
)
def test_a_value_out_of_range_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        make()
    assert str(caught.value).count("\n") == 0


@pytest.mark.parametrize("rule", [1024, True, "histogram", {0: 1}])
def test_a_loss_scale_that_is_no_rule_is_refused(rule: Any) -> None:
    with pytest.raises(TypeError, match=r"rule must be a DynamicLossScale, FixedLossScale, .* got"):
        LossScaleOptimizer(SGD(1.0), rule)


def test_a_loss_that_would_be_scaled_twice_is_refused() -> None:
    stock = v1.train.experimental.MixedPrecisionLossScaleOptimizer(
        v1.train.GradientDescentOptimizer(1.0), "dynamic"
    )
    with pytest.raises(ValueError, match=r"scaled twice, since MixedPrecisionLossScaleOptimizer"):
        LossScaleOptimizer(stock)
    with pytest.raises(ValueError, match=r"Write LossScaleOptimizer\(ClippedOptimizer\(optimizer"):
        ClippedOptimizer(LossScaleOptimizer(SGD(1.0)))


def test_gradients_of_a_loss_that_was_not_scaled_are_refused() -> None:
    with tf.Graph().as_default():
        variable = v1.get_variable("w", [2])
        with pytest.raises(ValueError, match=r"not scaled\. Take them from compute_gradients"):
            LossScaleOptimizer(SGD(1.0)).apply_gradients([(tf.zeros([2]), variable)])


def test_numbers_of_numpy_and_tensors_are_rates() -> None:
    SGD(np.float32(0.1), momentum=np.float64(0.9))
    SGD(tf.constant(0.1))


@pytest.mark.parametrize("patterns", ["bias", [1]])
def test_patterns_that_are_not_a_list_of_strings_are_refused(patterns: Any) -> None:
    with pytest.raises(TypeError, match=r"exclude_from_layer_adaptation must be a list .*\['bias"):
        LARS(exclude_from_layer_adaptation=patterns)


def test_a_wrapper_needs_an_optimizer() -> None:
    with pytest.raises(TypeError, match=r"ClippedOptimizer needs an optimizer .* got 1\.0"):
        ClippedOptimizer(1.0)


def test_wrappers_twice_or_in_a_wrong_order_are_refused() -> None:
    with pytest.raises(ValueError, match=r"is used twice: .* Write ClippedOptimizer\(optimizer\)"):
        ClippedOptimizer(ClippedOptimizer(SGD(1.0)))
    right = r"Write ClippedOptimizer\(DistributedOptimizer\(optimizer\)\)\.$"
    with pytest.raises(ValueError, match=right):
        DistributedOptimizer(ClippedOptimizer(SGD(1.0)))
    with pytest.raises(ValueError, match=right):
        ClippedOptimizer(DistributedOptimizer(ClippedOptimizer(SGD(1.0))))
    outermost = r"Write GradientAccumulationOptimizer\(ClippedOptimizer\(optimizer\)\)\.$"
    with pytest.raises(ValueError, match=outermost):
        ClippedOptimizer(GradientAccumulationOptimizer(SGD(1.0), 2))


@pytest.mark.parametrize("number", [0, -2, 1.5, True, None])
def test_accumulation_needs_a_number_of_micro_batches(number: Any) -> None:
    with pytest.raises(ValueError, match="num_mini_batches must be an integer of at least 1, got"):
        GradientAccumulationOptimizer(SGD(1.0), number)


def test_accumulation_knows_two_reductions() -> None:
    with pytest.raises(ValueError, match='reduction_method must be "mean" or "sum", got \'max\''):
        GradientAccumulationOptimizer(SGD(1.0), 2, "max")  # type: ignore[arg-type]


def test_a_pattern_that_fits_no_variable_is_logged_once(logged: list[str], take: Any) -> None:
    optimizer = LAMB(exclude_from_weight_decay=["beta", "gamma"])
    step = {"layer/beta": np.ones(2), "layer/kernel": np.ones(2)}
    take(optimizer, step, [step])
    take(optimizer, step, [step])
    assert [line for line in logged if "pattern" in line] == [
        "exclude_from_weight_decay: the pattern 'gamma' fits none of the 2 variables "
        "(layer/beta, layer/kernel)."
    ]


def test_no_gradient_is_refused() -> None:
    with tf.Graph().as_default():
        variable = v1.get_variable("w", [2])
        with pytest.raises(ValueError, match="ClippedOptimizer got no gradient"):
            ClippedOptimizer(SGD(1.0)).apply_gradients([(None, variable)])


def test_a_schedule_without_a_global_step_says_so() -> None:
    with tf.Graph().as_default(), pytest.raises(ValueError, match="this graph has none"):
        training.cosine_decay(0.1, 10)()
