"""A pipeline of stages: its numbers, evaluations, checkpoints, logs and inputs."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1
import tf_keras
from brief_training import Fetch
from staged_model import (
    COUNT,
    MICRO,
    OPTIMIZERS,
    STAGES,
    STEPS,
    WORDS,
    X,
    Y,
    as_trained,
    assert_same,
    batches,
    first_stage,
    make_estimator,
    make_pipelined,
    make_plain,
    make_weights,
    second_stage,
    third_stage,
)

import tfdist.estimator as tfe
import tfdist.estimator.pipelined.model as pipelined
from tfdist.estimator import OptimizerFunctionOutput, PipelineEstimatorSpec
from tfdist.strategies import LocalStrategy
from tfdist.training import SGD

# The numbers.


def values_of(estimator: tfe.Estimator) -> dict[str, Any]:
    return {name: estimator.get_variable_value(name) for name in estimator.get_variable_names()}


@pytest.fixture(scope="module")
def trained_plainly(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Any]]:
    @cache
    def trained_plainly(optimizer: str = "sgd", factor: float = 1.0) -> dict[str, Any]:
        model_fn = make_plain(optimizer=optimizer, factor=factor)
        estimator = make_estimator(model_fn, tmp_path_factory.mktemp("plain"))
        return values_of(estimator.train(batches(MICRO * COUNT)))

    return trained_plainly


@pytest.mark.parametrize(
    ("optimizer", "loops", "replicas", "options"),
    [
        ("momentum", 1, 1, {"pipeline_schedule": "grouped"}),
        ("lamb", 3, 1, {}),
        ("momentum", 3, 2, {"pipeline_schedule": "grouped", "device_mapping": [0, 1, 0]}),
        ("scaled", 3, 2, {"pipeline_schedule": "sequential"}),
        ("keras", 1, 2, {"recomputation": True}),
        ("sgd", 1, 2, {"reduction_method": "sum"}),
    ],
    ids=str,
)
def test_a_pipeline_trains_as_one_device_does_with_the_whole_batch(
    tmp_path: Path,
    trained_plainly: Any,
    optimizer: str,
    loops: int,
    replicas: int,
    options: dict[str, Any],
) -> None:
    model_fn = make_pipelined(optimizer=optimizer, **options)
    estimator = make_estimator(model_fn, tmp_path, loops=loops, replicas=replicas)
    estimator.train(batches(MICRO // replicas))
    factor = COUNT if options.get("reduction_method") == "sum" else 1.0
    trained = values_of(estimator)
    assert_same(trained, trained_plainly(optimizer, factor))
    assert trained["global_step"] == STEPS


def _train_both(folder: Path, data: Any, *model: Any, **options: Any) -> list[tfe.Estimator]:
    """Trains the model on one device, and as a pipeline."""
    ways = (("plain", make_plain, MICRO * COUNT), ("pipelined", make_pipelined, MICRO))
    return [
        make_estimator(make(*model, **options), folder / name).train(batches(batch, data))
        for name, make, batch in ways
    ]


def test_an_infinite_micro_batch_skips_its_own_step_of_a_pipeline(tmp_path: Path) -> None:
    bad = X.copy()
    bad[COUNT * MICRO + MICRO] = np.inf  # In the second micro-batch of the second step.
    plain, pipelined = map(values_of, _train_both(tmp_path, (bad, Y), optimizer="scaled"))
    assert_same(plain, pipelined)
    assert (pipelined["global_step"], pipelined["loss_scale/skipped_steps"]) == (STEPS, 1)


@pytest.mark.parametrize(("replicas", "has_strategy"), [(2, False), (1, True)])
def test_variables_on_the_device_and_a_strategy_give_the_same_numbers(
    tmp_path: Path, trained_plainly: Any, replicas: int, has_strategy: bool
) -> None:
    strategy = {"train_distribute": LocalStrategy(1)}
    settings = strategy if has_strategy else {"variables_on_host": False}
    model_fn = make_pipelined(optimizer="adam")
    estimator = make_estimator(model_fn, tmp_path, replicas=replicas, **settings)
    estimator.train(batches(MICRO // replicas))
    assert_same(values_of(estimator), trained_plainly("adam"))


def test_gradients_of_half_precision_weights_are_added_in_float32(tmp_path: Path) -> None:
    def half(name: str) -> Any:
        zeros = v1.zeros_initializer()
        return tf.cast(v1.get_variable(name, [5], tf.bfloat16, initializer=zeros), tf.float32)

    def optimizer_function(x: Any, y: Any) -> OptimizerFunctionOutput:
        loss = 1.5 * tf.reduce_mean(x)  # The gradient of each weight is 0.3.
        return OptimizerFunctionOutput(SGD(1.0, stochastic_rounding=False), loss)

    stages = [lambda x, y: (x + half("one"), y), lambda x, y: (x + half("other"), y)]
    model_fn = make_pipelined(
        stages, gradient_accumulation_count=40, optimizer_function=optimizer_function
    )
    estimator = make_estimator(model_fn, tmp_path).train(batches(1), steps=1)
    for name in ("one", "other"):
        value = estimator.get_variable_value(name).astype(np.float32)
        np.testing.assert_allclose(value, -0.3, rtol=0.004)  # With sums in bfloat16 it is -0.309.


def test_stages_share_an_embedding(tmp_path: Path) -> None:
    def table() -> Any:
        with v1.variable_scope("shared", reuse=v1.AUTO_REUSE):
            return make_weights("table", [9, 4])

    def look_up(words: Any, y: Any) -> Any:
        return tf.reduce_mean(tf.nn.embedding_lookup(table(), words), axis=1), y

    def name_words(hidden: Any, y: Any) -> Any:
        return tf.matmul(hidden, table(), transpose_b=True), y

    stages = [look_up, second_stage, name_words]
    assert_same(*map(values_of, _train_both(tmp_path, (WORDS, Y), stages, "momentum")))


def test_keras_layers_are_made_in_stages(tmp_path: Path) -> None:
    def layer(units: int) -> Any:
        start = tf_keras.initializers.GlorotUniform(seed=units)
        return tf_keras.layers.Dense(units, "tanh", kernel_initializer=start)

    stages = [lambda x, y, units=units: (layer(units)(x), y) for units in (4, 6, 3)]
    estimators = _train_both(tmp_path, (X, Y), stages)
    assert_same(*map(values_of, estimators))
    assert_same(*(estimator.evaluate(batches(8)) for estimator in estimators))


@pytest.mark.parametrize(
    ("kind", "loops", "has_strategy", "replicas"),
    [("v1", 3, False, 2), ("tf_keras", 1, True, 1)],
)
def test_each_micro_batch_moves_the_statistics_of_batch_norm_once(
    tmp_path: Path, kind: str, loops: int, has_strategy: bool, replicas: int
) -> None:
    def normalized(x: Any, y: Any) -> Any:
        if kind == "v1":
            return v1.layers.batch_normalization(x, training=True, momentum=0.5), y
        return tf_keras.layers.BatchNormalization(momentum=0.5)(x, training=True), y

    def one(x: Any, y: Any) -> Any:
        return second_stage(*first_stage(x, y))

    settings = {"train_distribute": LocalStrategy(1)} if has_strategy else {}
    model_fn = make_pipelined([normalized, one, third_stage])
    estimator = make_estimator(model_fn, tmp_path, loops=loops, replicas=replicas, **settings)
    estimator.train(batches(MICRO // replicas))
    # Each replica has statistics of its own, which are averaged when they are saved.
    mean, variance = np.zeros([replicas, 5]), np.ones([replicas, 5])
    for i, batch in enumerate(X.reshape(-1, MICRO // replicas, 5)):
        mean[i % replicas] += (batch.mean(0) - mean[i % replicas]) * 0.5
        variance[i % replicas] += (batch.var(0) - variance[i % replicas]) * 0.5
    found = {n.split("/")[-1]: n for n in estimator.get_variable_names()}
    value = estimator.get_variable_value
    np.testing.assert_allclose(value(found["moving_mean"]), mean.mean(0), atol=1e-6)
    np.testing.assert_allclose(value(found["moving_variance"]), variance.mean(0), atol=1e-6)


def test_dropout_draws_anew_for_each_micro_batch_and_alike_in_backward(
    tmp_path: Path, trained_plainly: Any
) -> None:
    def dropping(x: Any, y: Any) -> Any:
        x, y = second_stage(x, y)
        return tf.nn.dropout(x, 0.5), y

    values = []
    for folder, recomputation in (("kept", False), ("recomputed", True)):
        model_fn = make_pipelined([first_stage, dropping, third_stage], recomputation=recomputation)
        estimator = make_estimator(model_fn, tmp_path / folder, tf_random_seed=1)
        estimator.train(batches(MICRO))
        values.append(values_of(estimator))
    assert_same(*values)
    assert not np.allclose(values[0]["first"], trained_plainly()["first"])


# A mean over unequal weights, and what is reported.

COUNTS = np.random.RandomState(1).randint(1, 20, len(Y)).astype(np.float32)
COUNTS[MICRO * COUNT + MICRO : MICRO * COUNT + 3 * MICRO] = 0  # Micro-batches of the second step.
WEIGHTED = (X, (Y, COUNTS))


def _weighted_values(logits: Any, labels: Any) -> tuple[Any, Any, dict[str, Any]]:
    """Returns the loss as a mean over counts, NaN without any; their sum; and the accuracy."""
    labels, counts = labels
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    is_right = tf.cast(tf.equal(tf.argmax(logits, 1), labels), tf.float32)
    total = tf.reduce_sum(counts)
    accuracy = tf.reduce_sum(is_right * counts) / total
    return tf.reduce_sum(losses * counts) / total, total, {"accuracy": accuracy}


def _weighted_pipeline(
    optimizer: str = "momentum", **options: Any
) -> Callable[..., PipelineEstimatorSpec]:
    def optimizer_function(logits: Any, labels: Any) -> OptimizerFunctionOutput:
        loss, total, metrics = _weighted_values(logits, labels)
        return OptimizerFunctionOutput(OPTIMIZERS[optimizer](), loss, total, metrics)

    return make_pipelined(optimizer_function=optimizer_function, **options)


def _weighted_plain(features: Any, labels: Any, mode: str, params: Any) -> tfe.EstimatorSpec:
    loss, total, metrics = _weighted_values(
        *third_stage(*second_stage(*first_stage(features, labels)))
    )
    chosen = OPTIMIZERS[params["optimizer"]]()
    gradients, variables = zip(*chosen.compute_gradients(loss), strict=True)

    def apply(*on_host: Any) -> Any:
        return chosen.apply_gradients(zip(on_host, variables, strict=True))

    reported = {"loss_weight": total, "training_metrics": metrics}
    return tfe.EstimatorSpec(mode, loss=loss, host_call=(apply, gradients), **reported)


def _reported(run_context: Any) -> list[Any]:
    return [run_context.original_args.fetches[1], "accuracy:0"]  # The loss comes first.


@pytest.fixture(scope="module")
def weighted_plainly(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    @cache
    def weighted_plainly(optimizer: str) -> Any:
        folder, hook = tmp_path_factory.mktemp("weighted"), Fetch(_reported)
        estimator = tfe.Estimator(_weighted_plain, folder, params={"optimizer": optimizer})
        estimator.train(batches(MICRO * COUNT, WEIGHTED), hooks=[hook])
        return values_of(estimator), hook.values

    return weighted_plainly


@pytest.mark.parametrize(
    ("optimizer", "loops", "replicas", "options"),
    [
        ("momentum", 1, 1, {}),
        ("scaled", 1, 2, {"recomputation": True}),
        ("momentum", 3, 2, {"pipeline_schedule": "grouped", "device_mapping": [0, 1, 0]}),
    ],
    ids=str,
)
def test_each_micro_batch_counts_by_its_loss_weight(
    tmp_path: Path,
    weighted_plainly: Any,
    optimizer: str,
    loops: int,
    replicas: int,
    options: dict[str, Any],
) -> None:
    model_fn, hook = _weighted_pipeline(optimizer, **options), Fetch(_reported)
    estimator = make_estimator(model_fn, tmp_path, loops=loops, replicas=replicas)
    estimator.train(batches(MICRO // replicas, WEIGHTED), hooks=[hook])
    values, reported = weighted_plainly(optimizer)
    assert_same(values_of(estimator), values)
    if loops > 1:
        shares = COUNTS.reshape(STEPS, -1).sum(1)
        reported = [np.average(reported, axis=0, weights=shares)]
    np.testing.assert_allclose(hook.values, reported, atol=2e-6)


def test_a_step_without_any_weight_moves_nothing(tmp_path: Path) -> None:
    counts = COUNTS.copy()
    counts[MICRO * COUNT : 2 * MICRO * COUNT] = 0
    kept = np.r_[0 : MICRO * COUNT, 2 * MICRO * COUNT : len(Y)]
    trained = []
    for rows, replicas in ((kept, 1), (slice(None), 1), (slice(None), 2)):
        folder = tmp_path / str(len(trained))
        estimator = make_estimator(_weighted_pipeline(), folder, replicas=replicas)
        data = (X[rows], (Y[rows], counts[rows]))
        trained.append(values_of(estimator.train(batches(MICRO // replicas, data))))
    assert [int(one.pop("global_step")) for one in trained] == [2, 3, 3]
    for other in trained[1:]:
        assert_same(other, trained[0])


def test_metrics_are_logged_and_summaries_are_written(
    tmp_path: Path, logged: list[str], read_events: Any, weighted_plainly: Any
) -> None:
    logging = v1.train.LoggingTensorHook(["accuracy"], every_n_iter=1)
    estimator = make_estimator(_weighted_pipeline(), tmp_path, replicas=2)
    estimator.train(batches(MICRO // 2, WEIGHTED), hooks=[logging], steps=1)
    [_, accuracy], *_ = weighted_plainly("momentum")[1]
    [(step, value)] = read_events(tmp_path)["accuracy"]
    assert (step, value) == (1, pytest.approx(accuracy, abs=2e-6))
    assert any(line.startswith("accuracy = ") for line in logged)


# Evaluating, predicting, exporting.


@pytest.mark.parametrize("replicas", [1, 2])
def test_evaluate_tells_what_one_device_tells(
    trained_pipeline: tfe.Estimator, replicas: int
) -> None:
    # The last batch is smaller, which is refused in training alone.
    input_fn: Any = lambda: tf.data.Dataset.from_tensor_slices((X, Y)).batch(10)  # noqa: E731
    places: dict[str, set[str]] = {}

    def stage(number: int) -> Callable[..., Any]:
        def placed(x: Any, y: Any) -> Any:
            places.setdefault(str(number), set()).add(tf.identity(x).device)
            return STAGES[number](x, y)

        return placed

    pipelined = as_trained(make_pipelined([stage(i) for i in range(3)]), trained_pipeline, replicas)
    plain = as_trained(make_plain(), trained_pipeline, replicas)
    assert_same(pipelined.evaluate(input_fn), plain.evaluate(input_fn))
    assert places == {
        str(i): {f"/device:CPU:{1 + i + 3 * r}" for r in range(replicas)} for i in range(3)
    }


def _logits(trained_pipeline: tfe.Estimator) -> Any:
    value = trained_pipeline.get_variable_value
    hidden = np.maximum(X @ value("first"), 0)
    return np.tanh(hidden @ value("second_") + value("bias")) @ value("third_one")


def test_predict_yields_tensors_or_dicts(trained_pipeline: tfe.Estimator) -> None:
    found = list(trained_pipeline.predict(batches(8, X)))
    named = list(as_trained(_with_dict(), trained_pipeline).predict(batches(8, X)))
    np.testing.assert_allclose(found, _logits(trained_pipeline), atol=1e-6)
    np.testing.assert_allclose([one["logits"] for one in named], found, atol=1e-6)


def _with_dict() -> Callable[..., PipelineEstimatorSpec]:
    return make_pipelined(
        [first_stage, second_stage, lambda x, y=0: ({"logits": third_stage(x)[0]},)]
    )


def test_an_export_serves_on_a_machine_with_one_device(
    tmp_path: Path, trained_pipeline: tfe.Estimator
) -> None:
    def receiver_fn() -> Any:
        x = v1.placeholder(tf.float32, [None, 5], name="x")
        return tfe.export.TensorServingInputReceiver(x, x)

    folder = as_trained(_with_dict(), trained_pipeline).export_saved_model(tmp_path, receiver_fn)
    with tf.Graph().as_default(), v1.Session() as session:
        loaded = v1.saved_model.load(session, ["serve"], folder.decode())
        [output] = loaded.signature_def["serving_default"].outputs.values()
        [given] = loaded.signature_def["serving_default"].inputs.values()
        found = session.run(output.name, {given.name: X})
    np.testing.assert_allclose(found, _logits(trained_pipeline), atol=1e-6)


def test_the_graph_of_training_is_not_exported(
    tmp_path: Path, trained_pipeline: tfe.Estimator
) -> None:
    receiver_fn = tfe.experimental.build_raw_supervised_input_receiver_fn(
        tf.constant(X[:MICRO]), tf.constant(Y[:MICRO])
    )
    with pytest.raises(ValueError, match=r"training graph of a pipeline cannot be exported"):
        trained_pipeline.export_saved_model(tmp_path, receiver_fn, experimental_mode="train")


def test_added_metrics_are_evaluated_and_the_new_estimator_trains(
    tmp_path: Path, trained_plainly: Any
) -> None:
    def mean_label(labels: Any) -> dict[str, Any]:
        return {"mean_label": v1.metrics.mean(labels)}

    own = make_estimator(make_pipelined(optimizer="adam"), tmp_path, replicas=2)
    estimator = tfe.add_metrics(own, mean_label)
    estimator.train(batches(MICRO // 2))
    assert_same(values_of(estimator), trained_plainly("adam"))
    assert estimator.evaluate(batches(8))["mean_label"] == pytest.approx(Y.mean())


# Checkpoints.


@pytest.mark.parametrize(
    ("begins", "goes_on"),
    [("plain", "pipelined"), ("pipelined", "plain")],
)
def test_a_training_goes_on_where_another_one_has_ended(
    tmp_path: Path, trained_plainly: Any, begins: str, goes_on: str
) -> None:
    ways = {"pipelined": (make_pipelined, MICRO), "plain": (make_plain, MICRO * COUNT)}

    def train(way: str, steps: int, skipped: int) -> tfe.Estimator:
        make, batch = ways[way]
        examples = skipped * MICRO * COUNT
        estimator = make_estimator(make(optimizer="adam"), tmp_path)
        return estimator.train(batches(batch, (X[examples:], Y[examples:])), steps=steps)

    train(begins, 1, 0)
    assert_same(values_of(train(goes_on, STEPS - 1, 1)), trained_plainly("adam"))


def test_a_pipeline_starts_with_the_weights_of_another_model(
    tmp_path: Path, trained_pipeline: tfe.Estimator
) -> None:
    estimator = tfe.Estimator(
        make_pipelined(), tmp_path, warm_start_from=trained_pipeline.model_dir, params=None
    )
    found = np.stack(list(estimator.predict(batches(8, X))))
    np.testing.assert_allclose(found, _logits(trained_pipeline), atol=1e-6)
    estimator.train(batches(MICRO, (X * 0, Y)), steps=1)  # No gradient of the first weights.
    first = estimator.get_variable_value("first")
    np.testing.assert_allclose(first, trained_pipeline.get_variable_value("first"), atol=1e-6)


# What is seen of it.


def test_hooks_and_summaries_see_the_first_micro_batch(
    tmp_path: Path, logged: list[str], read_events: Any
) -> None:
    seen = Fetch(lambda _: "hidden:0")
    logging = v1.train.LoggingTensorHook(["hidden:0"], every_n_iter=1)
    make_estimator(make_pipelined(), tmp_path).train(batches(MICRO), hooks=[seen, logging], steps=1)

    def start(name: str, *shape: int) -> Any:
        return np.random.RandomState(len(name)).randn(*shape) / 2

    hidden = np.maximum(X[:MICRO] @ start("first", 5, 4), 0)
    hidden = np.tanh(hidden @ start("second_", 4, 4) + start("bias", 4))
    np.testing.assert_allclose(seen.values, [hidden], atol=1e-6)
    assert any(line.startswith("hidden:0 = ") for line in logged)
    [(step, mean)] = read_events(tmp_path)["mean_of_hidden"]
    assert (step, mean) == (1, pytest.approx(hidden.mean(), abs=1e-6))


def test_the_log_says_which_devices_the_gradients_come_from_and_how_far_the_graph_is(
    tmp_path: Path, logged: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipelined, "_LOG_EVERY_S", 0.0)
    estimator = make_estimator(make_pipelined(), tmp_path)
    estimator.train(batches(MICRO), steps=1)
    devices = "/device:CPU:1, /device:CPU:2 and /device:CPU:3"
    assert f"host_call: 4 gradients (208 bytes) from {devices} to /device:CPU:0" in logged
    assert "Calling model_fn." in logged
    building = [line for line in logged if line.startswith("Building the graph of")]
    assert building[-1] == f"Building the graph of {COUNT} micro-batches: 100%, about 0 s left."
    assert len(building) == 2 * len(STAGES) * COUNT  # Forward and backward.


# What the input may be.


def test_features_may_be_a_dict_and_labels_may_be_missing(
    tmp_path: Path, trained_plainly: Any
) -> None:
    def first(features: Any) -> Any:
        return first_stage(features["x"], features["y"])

    data = {"y": Y, "x": X}
    estimator = make_estimator(
        make_pipelined([first, second_stage, third_stage], "adam"), tmp_path / "dict"
    )
    estimator.train(batches(MICRO, data))
    assert_same(values_of(estimator), trained_plainly("adam"))


def test_micro_batches_that_are_too_few_for_a_step_are_left(tmp_path: Path) -> None:
    examples = MICRO * (2 * COUNT + 1)
    estimator = make_estimator(make_pipelined(), tmp_path)
    estimator.train(batches(MICRO, (X[:examples], Y[:examples])))
    assert values_of(estimator)["global_step"] == 2


def test_train_and_evaluate_runs_a_pipeline(tmp_path: Path) -> None:
    results, _ = tfe.train_and_evaluate(
        make_estimator(make_pipelined(), tmp_path),
        tfe.TrainSpec(batches(MICRO), max_steps=2),
        tfe.EvalSpec(batches(8), steps=None, start_delay_secs=0, throttle_secs=0),
    )
    assert results["global_step"] == 2
    assert results["loss"] > 0
