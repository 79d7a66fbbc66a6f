"""Schedules give the rates of their formulas, and optimizers follow them."""

import math
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as v1

from tfdist.training import (
    SGD,
    cosine_decay,
    linear_decay,
    polynomial_decay,
    stepped,
    warmup,
)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (linear_decay(1.0, 10), {0: 1.0, 5: 0.5, 10: 0.0, 11: 0.0}),
        (linear_decay(1.0, 10, 0.5, first_step=8), {0: 1.0, 8: 1.0, 9: 0.75, 12: 0.5}),
        (polynomial_decay(1.0, 10), {0: 1.0, 5: 0.25, 10: 0.0}),
        (polynomial_decay(1.0, 10, 0.2, power=3.0), {5: 0.2 + 0.8 / 8, 20: 0.2}),
        (cosine_decay(2.0, 10), {0: 2.0, 5: 1.0, 2: 1 + math.cos(0.2 * math.pi), 10: 0.0}),
        (stepped({0: 0.1, 3: 0.01, 9: 1.0}), {0: 0.1, 2: 0.1, 3: 0.01, 8: 0.01, 9: 1.0, 99: 1.0}),
        (warmup(2.0, 4), {0: 0.0, 1: 0.5, 4: 2.0, 9: 2.0}),
        (warmup(2.0, 0), {0: 2.0}),
        (warmup(linear_decay(1.0, 10), 5), {0: 0.0, 1: 0.1, 5: 0.5, 6: 0.4, 10: 0.0}),
        (warmup(linear_decay(1.0, 10, first_step=5), 5), {1: 0.2, 5: 1.0, 6: 0.8}),
    ],
)
def test_a_schedule_gives_the_rates_of_its_formula(schedule: Any, expected: Any) -> None:
    rates = {step: float(schedule(step)) for step in expected}
    assert rates == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize(
    "optimizer", [SGD, v1.train.GradientDescentOptimizer], ids=["tfdist", "TensorFlow"]
)
def test_an_optimizer_follows_a_schedule_of_the_global_step(take: Any, optimizer: Any) -> None:
    made = optimizer(warmup(stepped({0: 1.0, 3: 0.5}), 2))
    values = take(made, {"w": np.zeros(1)}, [{"w": np.ones(1)}] * 5)
    np.testing.assert_allclose(values["w"], -(0.0 + 0.5 + 1.0 + 0.5 + 0.5), atol=1e-6)
