"""The optimizers that canned estimators take, and what they refuse."""

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1
import tf_keras

import tfdist.estimator as tfe
from tfdist.estimator import v1 as tfe1

legacy = tf_keras.optimizers.legacy
BIAS = "linear/linear_model/bias_weights"


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


@pytest.mark.parametrize(
    "optimizer", [v1.train.AdamOptimizer(0.1), lambda: v1.train.FtrlOptimizer(0.1)]
)
def test_v1_optimizers_train(train: Any, optimizer: Any) -> None:
    estimator = train(optimizer)
    assert estimator.get_variable_value("global_step") == 2
    assert estimator.get_variable_value(BIAS) != 0


@pytest.mark.parametrize("kind", [legacy, tf_keras.optimizers])
def test_the_rate_may_follow_the_global_step(train: Any, kind: Any) -> None:
    def halved_each_step() -> Any:
        step = v1.train.get_global_step()
        return kind.SGD(v1.train.exponential_decay(1.0, step, 1, 0.5, staircase=True))

    for steps in (1, 2):
        halved, constant = train(halved_each_step, steps), train(legacy.SGD(1.0), steps)
        same = halved.get_variable_value(BIAS) == pytest.approx(constant.get_variable_value(BIAS))
        assert same == (steps == 1)
    names = halved.get_variable_names()
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


# What is refused: optimizers, columns and features.


def _of_v1(columns: Any) -> list[Any]:
    with tf.Graph().as_default():
        return list(v1.feature_column.shared_embedding_columns([columns["word"]], 2))


def _combined(**arguments: Any) -> tfe.Estimator:
    return tfe.DNNLinearCombinedRegressor(**arguments)


REFUSED: dict[str, Callable[[Any], tfe.Estimator]] = {
    r"Unsupported optimizer name: Momentum. Supported names are: \('Adagrad',": (
        lambda columns: tfe.LinearRegressor([columns["age"]], optimizer="Momentum")
    ),
    "is not a tf.keras.optimizers.Optimizer instance .* type <class 'int'>": (
        lambda columns: tfe.LinearRegressor([columns["age"]], optimizer=3)
    ),
    "is not a tf.keras.optimizers.Optimizer instance .* <class 'NoneType'>": (
        lambda columns: tfe.LinearRegressor([columns["age"]], optimizer=lambda: None)
    ),
    "Unsupported optimizer name: Rprop. Supported names are": (
        lambda columns: tfe1.LinearRegressor([columns["age"]], optimizer="Rprop")
    ),
    "The given object is not an Optimizer instance. Given: 3": (
        lambda columns: tfe1.LinearRegressor([columns["age"]], optimizer=3)
    ),
    "The given object is not an Optimizer instance. Given: <tf_keras": (
        lambda columns: tfe1.LinearRegressor([columns["age"]], optimizer=legacy.SGD(0.1))
    ),
    "SyncReplicasOptimizer does not support multi": lambda columns: _combined(
        linear_feature_columns=[columns["age"]],
        linear_optimizer=v1.train.SyncReplicasOptimizer(v1.train.AdamOptimizer(), 1),
    ),
    "Either linear_feature_columns or dnn_feature_columns must be": lambda columns: _combined(),
    "dnn_hidden_units must be defined": (
        lambda columns: _combined(dnn_feature_columns=[columns["age"]])
    ),
    "feature_columns must not be empty": lambda columns: tfe.LinearRegressor([]),
    "Duplicate feature column name found for columns": (
        lambda columns: tfe.LinearRegressor([columns["age"], columns["age"]])
    ),
    "Feature absent is not in features dictionary": (
        lambda columns: tfe.LinearRegressor([tf.feature_column.numeric_column("absent")])
    ),
    "with an embedding_column or indicator_column": (
        lambda columns: tfe.DNNRegressor([2], [columns["word"]])
    ),
    "Received a feature column from TensorFlow v1": (
        lambda columns: tfe.LinearRegressor(_of_v1(columns))
    ),
    "a feature column from TensorFlow v1, but this is a TensorFlow v2": (
        lambda columns: tfe.DNNRegressor([2], _of_v1(columns))
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_trained_is_refused(columns: Any, batches: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        REFUSED[message](columns).train(batches("number"), steps=1)


def test_features_that_are_no_dict_are_refused(columns: Any) -> None:
    estimator = tfe.LinearRegressor([columns["age"]])
    with pytest.raises(ValueError, match="features should be a dictionary of `Tensor`s"):
        estimator.train(lambda: tf.data.Dataset.from_tensors(([[1.0]], [[1.0]])))
