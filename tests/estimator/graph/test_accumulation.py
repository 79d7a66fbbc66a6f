"""A step of several micro-batches in one process: its numbers, and who counts what."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1
from brief_training import Steps
from small_training import train

import tfdist.estimator as tfe
from tfdist.training import (
    LAMB,
    SGD,
    ClippedOptimizer,
    DynamicLossScale,
    GradientAccumulationOptimizer,
    LossScaleOptimizer,
)
from tfdist.training.wrappers.optimizer_wrapper import loss_to_differentiate

Make = Callable[..., Any]

LAYOUTS: dict[str, dict[str, Any]] = {
    "micro-batches": {"accumulation": 4},
    "replicas": {"accumulation": 2, "num_replicas": 2},
    "loop of two": {"accumulation": 2, "iterations": 2, "local_batch": 8},
    "loop of replicas": {"accumulation": 2, "num_replicas": 2, "iterations": 3},
    "on the device": {"accumulation": 4, "variables_on_host": False},
}
MODELS: dict[str, dict[str, Any]] = {
    "sparse": {"optimizer": "momentum", "has_embedding": True},
    "weighted": {"optimizer": "adam", "has_embedding": True, "is_weighted": True, "reports": True},
}


@pytest.fixture(scope="module")
def whole_batch(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The results of a device that takes the whole batch, for each model."""
    return {
        name: train("none", str(tmp_path_factory.mktemp("whole")), local_batch=16, **options)
        for name, options in MODELS.items()
    }


@pytest.mark.parametrize(
    ("model", "layout"),
    [
        ("sparse", "on the device"),
        ("sparse", "loop of replicas"),
        ("weighted", "micro-batches"),
        ("weighted", "replicas"),
        ("weighted", "loop of two"),
    ],
)
def test_micro_batches_give_the_weights_of_the_whole_batch(
    whole_batch: Any, tmp_path: Path, model: str, layout: str
) -> None:
    options = {"local_batch": 4, **MODELS[model], **LAYOUTS[layout]}
    result, expected = train("none", str(tmp_path), **options), whole_batch[model]
    assert result["values"].keys() == expected["values"].keys()
    for name, value in expected["values"].items():
        np.testing.assert_allclose(result["values"][name], value, atol=1e-6, err_msg=name)
    if "iterations" not in options:
        np.testing.assert_allclose(result["reported"], expected["reported"], atol=2e-6)
        np.testing.assert_allclose(result["metrics"], expected["metrics"], atol=2e-6)


# A mean over unequal weights.

X = np.random.default_rng(0).normal(size=(32, 3)).astype("float32")
COUNTS = np.random.default_rng(1).integers(1, 20, 32).astype("float32")
NOTHING = np.zeros(8, "float32")
OPTIMIZERS = {
    "adam": lambda: v1.train.AdamOptimizer(0.1),
    "keras": lambda: tf.keras.optimizers.legacy.SGD(0.1, momentum=0.9),
    "clipped": lambda: ClippedOptimizer(LAMB(0.1), 1.0),
    "scaled": lambda: LossScaleOptimizer(SGD(0.1), DynamicLossScale(growth_steps=3)),
}


def _train_weighted(
    folder: Path, x: Any, counts: Any, *, optimizer: str = "adam", rows: int = 8, **settings: Any
) -> dict[str, Any]:
    """Trains a mean over counts, which is NaN where a micro-batch has none."""

    def model_fn(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
        weight = v1.get_variable("weight", shape=[3, 1], initializer=v1.ones_initializer())
        error = tf.square(tf.matmul(features, weight)[:, 0] - 1.0)  # [rows]
        total = tf.reduce_sum(labels)  # []
        loss = tf.reduce_sum(error * labels) / total
        chosen = OPTIMIZERS[optimizer]()
        whole = loss / tf.distribute.get_strategy().num_replicas_in_sync
        gradient = tf.gradients(loss_to_differentiate(chosen, whole), [weight])

        def update(on_host: Any) -> Any:
            return chosen.apply_gradients([(on_host, weight)])

        host_call = (update, gradient)
        return tfe.EstimatorSpec(mode, loss=loss, host_call=host_call, loss_weight=total)

    config = tfe.RunConfig(device=tfe.DeviceConfig(**settings))
    estimator = tfe.Estimator(model_fn, folder, config)
    estimator.train(lambda: tf.data.Dataset.from_tensor_slices((x, counts)).batch(rows))
    return {n: estimator.get_variable_value(n) for n in estimator.get_variable_names()}


@pytest.mark.parametrize(
    ("optimizer", "settings"),
    [
        ("adam", {}),
        ("scaled", {"rows": 4, "num_replicas": 2}),
        ("keras", {"rows": 4, "num_replicas": 2}),
        ("clipped", {"rows": 2, "gradient_accumulation": 2, "num_replicas": 2}),
        ("keras", {"rows": 4, "gradient_accumulation": 2, "iterations_per_loop": 2}),
        ("scaled", {"rows": 4, "gradient_accumulation": 2, "iterations_per_loop": 2}),
    ],
)
def test_a_step_without_any_weight_moves_nothing_and_counts(
    tmp_path: Path, optimizer: str, settings: dict[str, Any]
) -> None:
    counts = np.concatenate([COUNTS[:8], NOTHING, COUNTS[8:16], COUNTS[16:24]])
    skipped = np.concatenate([X[:8], X[:8], X[8:24]])
    one = _train_weighted(tmp_path / "one", skipped, counts, optimizer=optimizer, **settings)
    without = {k: v for k, v in settings.items() if k != "iterations_per_loop"}
    other = _train_weighted(tmp_path / "other", X[:24], COUNTS[:24], optimizer=optimizer, **without)
    counters = {name for name in one if name.endswith(("global_step", "iter"))}
    assert [one["global_step"], other["global_step"]] == [4, 3]
    for name in one.keys() - counters:
        np.testing.assert_allclose(one[name], other[name], atol=1e-7, err_msg=name)
        assert np.all(np.isfinite(one[name])), name


# Who counts what.


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_hooks_and_checkpoints_count_updates_and_the_rest_of_the_input_is_left(
    make: Make, numbers: Make, saved_steps: Make, tmp_path: Path, num_replicas: int
) -> None:
    steps: list[int] = []

    def note(calls: int, run: Any) -> None:
        steps.append(int(run.session.run(v1.train.get_global_step(run.session.graph))))

    device = {"gradient_accumulation": 3, "num_replicas": num_replicas}
    estimator = make(save_checkpoints_steps=2, device=device)
    estimator.train(numbers(batches=15 * num_replicas - 1), hooks=[Steps(note)])
    assert steps == [1, 2, 3, 4]
    assert saved_steps(tmp_path)[-2:] == [2, 4]


def test_other_tensors_are_those_of_the_last_micro_batch(make: Make, numbers: Make) -> None:
    seen: list[Any] = []

    def model_fn(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
        weight = v1.get_variable("weight", shape=[2, 3], initializer=v1.ones_initializer())
        half = tf.cast(weight, tf.bfloat16)
        loss = tf.reduce_sum(tf.cast(half, tf.float32) * 0.5) + 0 * tf.reduce_sum(features["x"])
        rate = 1.0 / tf.cast(v1.train.get_global_step() + 1, tf.float32)  # []
        name, number = tf.constant("a name"), tf.shape(labels)[0]
        gradient, of_half = tf.gradients(loss, [weight, half])

        def update(*on_host: Any) -> Any:
            assert [one.dtype for one in on_host[:2]] == [tf.float32, tf.bfloat16]
            kept = tf.numpy_function(lambda *values: seen.append(values), list(on_host), [])
            return tf.group(kept, weight.assign_sub(on_host[0] * on_host[2]))

        tensors = [gradient, of_half, rate, name, number]
        return tfe.EstimatorSpec(mode, loss=loss, host_call=(update, tensors))

    device = {"gradient_accumulation": 3, "accumulation_reduction": "sum"}
    make(model_fn, device=device).train(numbers(), steps=2)
    assert [float(values[2]) for values in seen] == [1.0, 0.5]
    for gradient, of_half, _, name, number in seen:
        np.testing.assert_array_equal(gradient, np.full([2, 3], 1.5))
        np.testing.assert_array_equal(of_half.astype("float32"), np.full([2, 3], 1.5))
        assert (name, number) == (b"a name", 4)


@pytest.mark.parametrize("iterations", [1, 2])
def test_updates_of_the_forward_pass_run_with_each_micro_batch(
    make: Make, dense: Make, numbers: Make, iterations: int
) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
        moved = v1.get_variable("moved", [], initializer=v1.zeros_initializer(), trainable=False)
        return dense(train_op=v1.assign_add(moved, 1.0))(features, labels, mode)

    device = {"gradient_accumulation": 3, "iterations_per_loop": iterations}
    estimator = make(model_fn, device=device).train(numbers(), steps=4)
    assert estimator.get_variable_value("moved") == 12.0


def test_a_resumed_training_ends_with_the_same_bits(make: Make, dense: Make, weights: Make) -> None:
    def train_on(folder: str, first: int, end: int) -> dict[str, Any]:
        def input_fn() -> Any:
            rows = tf.data.Dataset.from_tensor_slices(({"x": X[:, :2]}, X)).batch(2)
            return rows.skip(2 * first)

        estimator = make(dense("adam"), folder, device={"gradient_accumulation": 2})
        return weights(estimator.train(input_fn, max_steps=end))

    undisturbed = train_on("undisturbed", 0, 6)
    train_on("stopped", 0, 3)
    np.testing.assert_equal(train_on("stopped", 3, 6), undisturbed)


def test_the_train_batch_size_counts_all_micro_batches(make: Make) -> None:
    device = {"gradient_accumulation": 4, "num_replicas": 2}
    sizes: list[int] = []

    def input_fn(params: Any) -> Any:
        sizes.append(params["batch_size"])
        return tf.data.Dataset.from_tensors(({"x": X[:2, :2]}, X[:2])).repeat()

    make(device=device, sizes={"train_batch_size": 16}).train(input_fn, steps=1)
    assert sizes == [2]
    with pytest.raises(ValueError, match=r"gradient_accumulation \(1 \* 2 \* 4\). Nearest: 16 and"):
        make(device=device, sizes={"train_batch_size": 20})


# Bad input.


def test_a_loss_weight_with_sums_is_refused_as_in_pipelines(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"gradient_accumulation": 2, "accumulation_reduction": "sum"}
    with pytest.raises(ValueError, match='Set accumulation_reduction="mean", or leave loss_weight'):
        _train_weighted(tmp_path, X, COUNTS, rows=4, **settings)


@pytest.mark.parametrize("iterations", [1, 2])
@pytest.mark.parametrize(
    ("way", "message"),
    [
        ("counted", r"training.GradientAccumulationOptimizer\(optimizer, num_mini_batches=4"),
        ("twice", "Illegal increment of the `global_step` variable"),
    ],
)
def test_a_model_that_updates_by_itself_is_refused(
    make: Make, dense: Make, numbers: Make, way: str, message: str, iterations: int
) -> None:
    def counting(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
        step = v1.assign_add(v1.train.get_global_step(), 1)
        return dense(train_op=step)(features, labels, mode)

    device = {"gradient_accumulation": 4, "iterations_per_loop": iterations}
    model_fn = counting if way == "twice" else dense(way=way)
    with pytest.raises(ValueError, match=message):
        make(model_fn, device=device).train(numbers(), steps=2)


def _accumulating() -> Any:
    return GradientAccumulationOptimizer(SGD(0.1), 2)


@pytest.mark.parametrize(
    ("device", "reported"),
    [
        ({}, {}),
        ({}, {"loss_weight": 2.0}),
        ({"gradient_accumulation": 2}, {}),
        ({"gradient_accumulation": 2, "iterations_per_loop": 2}, {"loss_weight": 2.0}),
        ({"num_replicas": 2}, {}),
    ],
)
def test_an_accumulating_optimizer_in_host_call_is_refused_with_what_to_write(
    make: Make, dense: Make, numbers: Make, device: dict[str, Any], reported: dict[str, Any]
) -> None:
    """It counted micro-batches as steps, and all alike in spite of a loss weight."""
    estimator = make(dense(_accumulating, **reported), device=device)
    with pytest.raises(ValueError, match=r"Set DeviceConfig\(gradient_accumulation=n\), and call"):
        estimator.train(numbers(), steps=2)


@pytest.mark.parametrize("way", ["counted", "uncounted"])
def test_a_train_op_that_accumulates_without_the_global_step_is_reported(
    make: Make, dense: Make, numbers: Make, logged: list[str], way: str
) -> None:
    make(dense(_accumulating, way)).train(numbers(), steps=2)
    lines = [line for line in logged if "The global step counts micro-batches" in line]
    assert len(lines) == (way == "uncounted")


@pytest.mark.parametrize(
    ("weight", "way", "message"),
    [
        (1.0, "uncounted", "loss_weight needs a host_call"),
        (-1.0, "host_call", "loss_weight must not be negative, got -1.0"),
        (np.ones(2, "float32"), "host_call", r"must be a scalar number, got shape \(2,\)"),
        ("1", "host_call", "loss_weight must be Tensor"),
    ],
)
def test_a_bad_loss_weight_is_refused(
    make: Make, dense: Make, numbers: Make, weight: Any, way: str, message: str
) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
        reported = tf.constant(weight) if isinstance(weight, np.ndarray) else weight
        return dense(way=way, loss_weight=reported)(features, labels, mode)

    with pytest.raises((ValueError, TypeError), match=message):
        make(model_fn).train(numbers(), steps=1)


def test_a_weight_that_becomes_negative_ends_the_training(
    make: Make, dense: Make, numbers: Make
) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
        step = tf.cast(v1.train.get_global_step(), tf.float32)
        return dense(loss_weight=1.0 - step)(features, labels, mode)

    with pytest.raises(tf.errors.InvalidArgumentError, match="loss_weight must not be negative"):
        make(model_fn).train(numbers(), steps=3)


def test_weighted_replicas_need_gradients_that_an_optimizer_reduces(
    make: Make, dense: Make, numbers: Make
) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
        spec = dense(loss_weight=3)(features, labels, mode)
        kernel, _ = v1.trainable_variables()
        return spec._replace(host_call=(kernel.assign_sub, spec.host_call[1][:1]))

    with pytest.raises(ValueError, match=r"host_call reduces none\. Call apply_gradients"):
        make(model_fn, device={"num_replicas": 2}).train(numbers(), steps=1)
