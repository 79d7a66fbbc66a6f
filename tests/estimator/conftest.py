"""One small model and its data, shared by the tests of the Estimator."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

import tfdist.estimator as tfe

ModelFn = Callable[..., tfe.EstimatorSpec]
InputFn = Callable[[], tf.data.Dataset]

OPTIMIZERS: dict[str, Callable[[], v1.train.Optimizer]] = {
    "sgd": lambda: v1.train.GradientDescentOptimizer(0.1),
    "momentum": lambda: v1.train.MomentumOptimizer(0.1, 0.9),
    "adam": lambda: v1.train.AdamOptimizer(0.1),
}


@pytest.fixture
def graph() -> Iterator[tf.Graph]:
    """A graph of the test's own, the default one while the test runs."""
    with tf.Graph().as_default() as graph:
        yield graph


@pytest.fixture(scope="session")
def numbers() -> Callable[..., InputFn]:
    """Makes an input_fn of ({"x": [batch, 2]}, [batch, 3]), always the same numbers."""

    def numbers(*, batches: int | None = None, batch_size: int = 4) -> InputFn:
        def input_fn() -> tf.data.Dataset:
            random = np.random.RandomState(0)
            x = random.randn(16 * batch_size, 2).astype(np.float32)
            y = random.randn(16 * batch_size, 3).astype(np.float32)
            dataset = tf.data.Dataset.from_tensor_slices(({"x": x}, y)).repeat().batch(batch_size)
            return dataset if batches is None else dataset.take(batches)

        return input_fn

    return numbers


@pytest.fixture(scope="session")
def dense() -> Callable[..., ModelFn]:
    """Makes a model_fn with a kernel [2, 3] of ones and a bias [3] of zeros.

    Args of what it returns:
      optimizer: "sgd", "momentum", "adam", or a function that makes an optimizer.
      way: "host_call"; "counted", where minimize increments the global step; or "uncounted".
      spec: Further fields of the EstimatorSpec.
    """

    def dense(optimizer: Any = "sgd", way: str = "host_call", **spec: Any) -> ModelFn:
        def model_fn(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
            kernel = v1.get_variable("kernel", [2, 3], initializer=v1.ones_initializer())
            bias = v1.get_variable("bias", [3], initializer=v1.zeros_initializer())
            output = tf.matmul(features["x"], kernel) + bias
            if mode == tfe.ModeKeys.PREDICT:
                return tfe.EstimatorSpec(mode, predictions={"output": output, **features}, **spec)
            loss = tf.reduce_mean(tf.square(output - labels))
            if mode == tfe.ModeKeys.EVAL:
                metrics = {"mae": v1.metrics.mean_absolute_error(labels, output)}
                return tfe.EstimatorSpec(mode, loss=loss, eval_metric_ops=metrics, **spec)
            chosen = OPTIMIZERS.get(optimizer, optimizer)()
            if way == "host_call":
                pairs = chosen.compute_gradients(loss)

                def update(*gradients: Any) -> tf.Operation:
                    variables = [variable for _, variable in pairs]
                    return chosen.apply_gradients(zip(gradients, variables, strict=True))

                how: dict[str, Any] = {"host_call": (update, [g for g, _ in pairs])}
            else:
                step = v1.train.get_global_step() if way == "counted" else None
                how = {"train_op": chosen.minimize(loss, global_step=step)}
            return tfe.EstimatorSpec(mode, loss=loss, **how, **spec)

        return model_fn

    return dense


@pytest.fixture
def make(dense: Callable[..., ModelFn], tmp_path: Path) -> Callable[..., tfe.Estimator]:
    """Makes an Estimator, by default of `dense()`, in tmp_path or a folder in it.

    It writes no summaries and no lines about steps. `device` has the settings of a DeviceConfig.
    """

    def make(
        model_fn: Any = None,
        folder: str = "",
        *,
        device: dict[str, Any] | None = None,
        sizes: dict[str, int] | None = None,
        **settings: Any,
    ) -> tfe.Estimator:
        quiet = {"save_summary_steps": None, "log_step_count_steps": None}
        config = tfe.RunConfig(**{**quiet, **settings}, device=tfe.DeviceConfig(**(device or {})))
        return tfe.Estimator(model_fn or dense(), tmp_path / folder, config, **(sizes or {}))

    return make


@pytest.fixture(scope="session")
def weights() -> Callable[[tfe.Estimator], dict[str, Any]]:
    """Reads all variables of an Estimator's newest checkpoint."""

    def weights(estimator: tfe.Estimator) -> dict[str, Any]:
        return {n: estimator.get_variable_value(n) for n in estimator.get_variable_names()}

    return weights


@pytest.fixture(scope="session")
def saved_steps() -> Callable[[Path | str], list[int]]:
    """Lists the steps whose checkpoints a folder holds."""

    def saved_steps(folder: Path | str) -> list[int]:
        files = Path(folder).glob("model.ckpt-*.index")
        return sorted(int(file.stem.split("-")[1]) for file in files)

    return saved_steps


@pytest.fixture(scope="session")
def trained_pipeline(tmp_path_factory: pytest.TempPathFactory) -> tfe.Estimator:
    """A pipeline that has been trained; others evaluate its checkpoint."""
    from staged_model import MICRO, batches, make_estimator, make_pipelined

    estimator = make_estimator(make_pipelined(), tmp_path_factory.mktemp("trained"))
    return estimator.train(batches(MICRO))
