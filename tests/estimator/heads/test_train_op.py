"""Newer Keras optimizers become the legacy ones with the same settings."""

from typing import Any

import numpy as np
import pytest
import tf_keras

from tfdist.estimator.heads.train_op import graph_optimizer

SETTINGS: dict[str, dict[str, Any]] = {
    "Adadelta": {"rho": 0.8, "epsilon": 1e-6},
    "Adagrad": {"initial_accumulator_value": 0.2, "epsilon": 1e-6},
    "Adam": {"beta_1": 0.8, "beta_2": 0.9, "epsilon": 1e-6, "amsgrad": True},
    "Adamax": {"beta_1": 0.8, "beta_2": 0.9, "epsilon": 1e-6},
    "Ftrl": {
        "learning_rate_power": -0.4, "initial_accumulator_value": 0.2,
        "l1_regularization_strength": 0.1, "l2_regularization_strength": 0.2,
        "l2_shrinkage_regularization_strength": 0.3, "beta": 0.4,
    },
    "Nadam": {"beta_1": 0.8, "beta_2": 0.9, "epsilon": 1e-6},
    "RMSprop": {"rho": 0.8, "momentum": 0.7, "epsilon": 1e-6, "centered": True},
    "SGD": {"momentum": 0.7, "nesterov": True},
}  # fmt: skip


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_is_taken_over(name: str, logged: list[str]) -> None:
    settings = {"learning_rate": 0.3, "global_clipnorm": 2.0, **SETTINGS[name]}
    found = graph_optimizer(getattr(tf_keras.optimizers, name)(**settings))
    assert isinstance(found, getattr(tf_keras.optimizers.legacy, name))
    config = found.get_config()
    assert {key: config[key] for key in SETTINGS[name]} == pytest.approx(SETTINGS[name])
    assert config["learning_rate"] == pytest.approx(0.3)
    assert found.global_clipnorm == 2.0
    assert any(f"runs as tf_keras.optimizers.legacy.{name}," in line for line in logged)


def test_a_schedule_is_taken_over() -> None:
    schedule = tf_keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)
    found = graph_optimizer(tf_keras.optimizers.SGD(schedule))
    np.testing.assert_allclose(found.learning_rate(2), 0.025)


def test_a_legacy_optimizer_is_used_as_it_is() -> None:
    optimizer = tf_keras.optimizers.legacy.SGD()
    assert graph_optimizer(optimizer) is optimizer


@pytest.mark.parametrize(
    "optimizer",
    [
        tf_keras.optimizers.AdamW(),
        tf_keras.optimizers.Lion(),
        tf_keras.optimizers.SGD(weight_decay=0.1),
        tf_keras.optimizers.SGD(use_ema=True),
        tf_keras.optimizers.Adam(adaptive_epsilon=True),
    ],
)
def test_what_the_legacy_one_cannot_do_is_refused(optimizer: Any) -> None:
    with pytest.raises(ValueError, match="cannot train in a graph"):
        graph_optimizer(optimizer)
