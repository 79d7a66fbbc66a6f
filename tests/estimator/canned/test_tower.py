"""The optimizers that canned estimators take."""

from typing import Any

import pytest
import tensorflow.compat.v1 as v1
import tf_keras

import tfdist.estimator as tfe

legacy = tf_keras.optimizers.legacy


@pytest.fixture
def train(columns: Any, batches: Any) -> Any:
    """Trains a linear regressor with this optimizer for a few steps."""

    def train(optimizer: Any, steps: int = 2) -> tfe.Estimator:
        estimator = tfe.LinearRegressor([columns["age"]], optimizer=optimizer)
        return estimator.train(batches("number"), steps=steps)

    return train


@pytest.mark.parametrize(
    ("name", "slots"),
    [
        ("Adagrad", ["accumulator"]),
        ("Adam", ["m", "v"]),
        ("Ftrl", ["accumulator", "linear"]),
        ("RMSProp", ["rms"]),
        ("SGD", []),
    ],
)
def test_a_name_gives_a_keras_optimizer(train: Any, name: str, slots: list[str]) -> None:
    estimator = train(name)
    scope = f"training/{'RMSprop' if name == 'RMSProp' else name}/"
    assert estimator.get_variable_value(scope + "learning_rate") == pytest.approx(0.2)
    for slot in slots:
        variable = f"{scope}linear/linear_model/age/weights/{slot}"
        assert variable in estimator.get_variable_names()


@pytest.mark.parametrize("optimizer", [v1.train.AdamOptimizer, v1.train.FtrlOptimizer])
def test_v1_optimizers_train(train: Any, optimizer: Any) -> None:
    for given in (optimizer(0.1), lambda: optimizer(0.1)):
        estimator = train(given)
        assert estimator.get_variable_value("global_step") == 2
        assert estimator.get_variable_value("linear/linear_model/bias_weights") != 0


@pytest.mark.parametrize("kind", [legacy, tf_keras.optimizers])
def test_the_rate_may_follow_the_global_step(train: Any, kind: Any) -> None:
    def halved_each_step() -> Any:
        step = v1.train.get_global_step()
        return kind.SGD(v1.train.exponential_decay(1.0, step, 1, 0.5, staircase=True))

    def by_step(step: int) -> Any:
        return train(halved_each_step, step).get_variable_value("linear/linear_model/bias_weights")

    def by_hand() -> Any:
        estimator = train(legacy.SGD(1.0), 1)
        return estimator.get_variable_value("linear/linear_model/bias_weights")

    assert by_step(1) == pytest.approx(by_hand())
    constant = train(legacy.SGD(1.0), 2)
    assert by_step(2) != pytest.approx(
        constant.get_variable_value("linear/linear_model/bias_weights")
    )
    names = train(halved_each_step).get_variable_names()
    assert not [name for name in names if "learning_rate" in name or "iter" in name]


def test_one_optimizer_object_trains_twice(columns: Any, batches: Any) -> None:
    # tf.estimator could not do that.
    estimator = tfe.LinearRegressor([columns["age"]], optimizer=legacy.Adam(0.1))
    for _ in range(2):
        estimator.train(batches("number"), steps=2)
    assert estimator.get_variable_value("global_step") == 4


def test_an_optimizer_of_the_users_counts_the_steps(train: Any) -> None:
    class Mine(legacy.Optimizer):  # type: ignore[misc]
        def get_updates(self, loss: Any, params: Any) -> Any:
            assert [p.name for p in params] == [
                "linear/linear_model/age/weights:0",
                "linear/linear_model/bias_weights:0",
            ]
            return [self.iterations.assign_add(1).op]

        def get_config(self) -> Any:
            return super().get_config()

    mine = Mine(name="mine")
    estimator = train(mine, 3)
    assert estimator.get_variable_value(mine.iterations.name) == 3


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        ("Momentum", r"Unsupported optimizer name: Momentum. Supported names are: \('Adagrad',"),
        (3, "is not a tf.keras.optimizers.Optimizer instance .* type <class 'int'>"),
        (lambda: None, "is not a tf.keras.optimizers.Optimizer instance .* <class 'NoneType'>"),
    ],
)
def test_anything_else_is_refused(train: Any, optimizer: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        train(optimizer)
