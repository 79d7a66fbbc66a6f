"""A model_fn that returns a pipeline of stages: the numbers, the files, and what is refused."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1
import tf_keras

import tfdist.estimator as tfe
from tfdist.estimator import OptimizerFunctionOutput, PipelineEstimatorSpec
from tfdist.strategies import DeviceError, LocalStrategy
from tfdist.training import LAMB, SGD, ClippedOptimizer, LossScaleOptimizer, warmup
from tfdist.training.optimizer import loss_to_differentiate

COUNT, MICRO, STEPS = 6, 4, 3  # Micro-batches in a step, examples in one, and steps.

random = np.random.RandomState(0)
X = random.randn(COUNT * MICRO * STEPS, 5).astype(np.float32)
WORDS = random.randint(0, 9, (COUNT * MICRO * STEPS, 2)).astype(np.int32)
Y = random.randint(0, 3, COUNT * MICRO * STEPS)

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: v1.train.GradientDescentOptimizer(0.1),
    "momentum": lambda: v1.train.MomentumOptimizer(0.1, 0.9),
    "adam": lambda: v1.train.AdamOptimizer(0.01),
    "keras": lambda: tf_keras.optimizers.legacy.Adam(0.01),
    "lamb": lambda: ClippedOptimizer(LAMB(warmup(0.1, 2), weight_decay=0.1), global_norm=0.1),
    "scaled": lambda: LossScaleOptimizer(LAMB(0.1), dynamic_growth_steps=2),
}


def _input_fn(batch: int, data: Any = (X, Y)) -> Callable[[], tf.data.Dataset]:
    return lambda: tf.data.Dataset.from_tensor_slices(data).batch(batch, drop_remainder=True)


def _weights(name: str, shape: Sequence[int]) -> Any:
    values = np.random.RandomState(len(name)).randn(*shape).astype(np.float32) / 2
    return v1.get_variable(name, initializer=values)


def _first(x: Any, y: Any = 0) -> Any:
    return tf.nn.relu(tf.matmul(x, _weights("first", [5, 4]))), y


def _second(x: Any, y: Any = 0) -> Any:
    hidden = tf.nn.tanh(tf.matmul(x, _weights("second_", [4, 4])) + _weights("bias", [4]))
    v1.summary.scalar("mean_of_hidden", tf.reduce_mean(hidden))
    return tf.identity(hidden, name="hidden"), y


def _third(x: Any, y: Any = 0) -> Any:
    return tf.matmul(x, _weights("third_one", [4, 3])), y


STAGES = [_first, _second, _third]


def _loss(logits: Any, labels: Any) -> Any:
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    return tf.reduce_mean(losses)


def _weighted_values(logits: Any, labels: Any) -> tuple[Any, Any, dict[str, Any]]:
    """Returns the loss as a mean over counts, NaN without any; their sum; and the accuracy."""
    labels, counts = labels
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    is_right = tf.cast(tf.equal(tf.argmax(logits, 1), labels), tf.float32)
    total = tf.reduce_sum(counts)
    accuracy = tf.reduce_sum(is_right * counts) / total
    return tf.reduce_sum(losses * counts) / total, total, {"accuracy": accuracy}


def _metrics(logits: Any, labels: Any) -> dict[str, Any]:
    accuracy = v1.metrics.accuracy(labels, tf.argmax(logits, 1))
    return {"loss": _loss(logits, labels), "accuracy": accuracy}


def _pipelined(
    stages: Sequence[Callable[..., Any]] = STAGES, optimizer: str = "sgd", **options: Any
) -> Callable[..., PipelineEstimatorSpec]:
    def model_fn(mode: str) -> PipelineEstimatorSpec:
        computed = stages
        if mode == tfe.ModeKeys.PREDICT:
            computed = [*stages[:-1], lambda *args: stages[-1](*args)[0]]
        settings = {
            "computational_stages": computed,
            "gradient_accumulation_count": COUNT,
            "optimizer_function": lambda *outputs: OptimizerFunctionOutput(
                OPTIMIZERS[optimizer](), _loss(*outputs)
            ),
            "eval_metrics_fn": _metrics,
        }
        return PipelineEstimatorSpec(mode=mode, **{**settings, **options})

    return model_fn


def _plain(
    stages: Sequence[Callable[..., Any]] = STAGES, optimizer: str = "sgd", factor: float = 1.0
) -> Callable[..., tfe.EstimatorSpec]:
    """The same model on one device, whose batch is all micro-batches of a step."""

    def model_fn(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
        arguments: Any = (features, labels)
        for stage in stages:
            arguments = stage(*arguments)
        logits, labels = arguments
        loss = _loss(logits, labels)
        variables, chosen = v1.trainable_variables(), OPTIMIZERS[optimizer]()
        gradients = tf.gradients(loss_to_differentiate(chosen, loss * factor), variables)

        def apply(*on_host: Any) -> Any:
            return chosen.apply_gradients(zip(on_host, variables, strict=True))

        metrics = {"accuracy": v1.metrics.accuracy(labels, tf.argmax(logits, 1))}
        return tfe.EstimatorSpec(
            mode, loss=loss, host_call=(apply, gradients), eval_metric_ops=metrics
        )

    return model_fn


def _estimator(
    model_fn: Any, folder: Path, *, loops: int = 1, replicas: int = 1, **settings: Any
) -> tfe.Estimator:
    on_host = settings.pop("variables_on_host", True)
    device = tfe.DeviceConfig(
        iterations_per_loop=loops, variables_on_host=on_host, num_replicas=replicas
    )
    config = tfe.RunConfig(
        device=device, save_checkpoints_steps=1000, save_summary_steps=1, **settings
    )
    return tfe.Estimator(model_fn, folder, config)


def _assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        np.testing.assert_allclose(value, other[name], atol=1e-6, err_msg=name)


# The numbers.


@pytest.fixture(scope="module")
def trained_plainly(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Any]]:
    known: dict[Any, dict[str, Any]] = {}

    def trained_plainly(optimizer: str = "sgd", factor: float = 1.0) -> dict[str, Any]:
        if (optimizer, factor) not in known:
            model_fn = _plain(optimizer=optimizer, factor=factor)
            estimator = _estimator(model_fn, tmp_path_factory.mktemp("plain"))
            estimator.train(_input_fn(MICRO * COUNT))
            names = estimator.get_variable_names()
            known[optimizer, factor] = {n: estimator.get_variable_value(n) for n in names}
        return known[optimizer, factor]

    return trained_plainly


@pytest.mark.parametrize(
    ("optimizer", "loops", "replicas", "options"),
    [
        ("adam", 1, 1, {}),
        ("adam", 3, 1, {}),
        ("momentum", 1, 1, {"pipeline_schedule": "grouped"}),
        ("momentum", 3, 1, {"pipeline_schedule": "sequential"}),
        ("adam", 1, 1, {"recomputation": True}),
        ("keras", 1, 1, {}),
        ("lamb", 3, 1, {}),
        ("scaled", 3, 1, {}),
        ("sgd", 1, 1, {"pipeline_schedule": "grouped", "device_mapping": [0, 1, 0]}),
        ("sgd", 1, 1, {"reduction_method": "sum"}),
        ("adam", 1, 2, {}),
        ("momentum", 3, 2, {"pipeline_schedule": "grouped", "device_mapping": [0, 1, 0]}),
        ("scaled", 3, 2, {"pipeline_schedule": "sequential"}),
        ("keras", 1, 2, {"recomputation": True}),
        ("sgd", 1, 2, {"reduction_method": "sum"}),
    ],
    ids=str,
)
def test_a_pipeline_trains_as_one_device_does_with_the_whole_batch(
    tmp_path: Path,
    weights: Any,
    trained_plainly: Any,
    optimizer: str,
    loops: int,
    replicas: int,
    options: dict[str, Any],
) -> None:
    model_fn = _pipelined(optimizer=optimizer, **options)
    estimator = _estimator(model_fn, tmp_path, loops=loops, replicas=replicas)
    estimator.train(_input_fn(MICRO // replicas))
    factor = COUNT if options.get("reduction_method") == "sum" else 1.0
    trained = weights(estimator)
    _assert_same(trained, trained_plainly(optimizer, factor))
    assert trained["global_step"] == STEPS


def test_an_infinite_micro_batch_skips_its_own_step_of_a_pipeline(
    tmp_path: Path, weights: Any
) -> None:
    bad = X.copy()
    bad[COUNT * MICRO + MICRO] = np.inf  # In the second micro-batch of the second step.
    values = []
    for model_fn, batch, folder in (
        (_plain(optimizer="scaled"), MICRO * COUNT, "plain"),
        (_pipelined(optimizer="scaled"), MICRO, "pipelined"),
    ):
        estimator = _estimator(model_fn, tmp_path / folder)
        estimator.train(_input_fn(batch, (bad, Y)))
        values.append(weights(estimator))
    _assert_same(*values)
    assert (values[1]["global_step"], values[1]["loss_scale/skipped_steps"]) == (STEPS, 1)


@pytest.mark.parametrize("replicas", [1, 2])
def test_variables_on_the_device_give_the_same_numbers(
    tmp_path: Path, weights: Any, trained_plainly: Any, replicas: int
) -> None:
    estimator = _estimator(
        _pipelined(optimizer="adam"), tmp_path, replicas=replicas, variables_on_host=False
    )
    estimator.train(_input_fn(MICRO // replicas))
    _assert_same(weights(estimator), trained_plainly("adam"))


def test_a_strategy_of_one_worker_gives_the_same_numbers(
    tmp_path: Path, weights: Any, trained_plainly: Any
) -> None:
    model_fn = _pipelined(optimizer="adam")
    estimator = _estimator(model_fn, tmp_path, train_distribute=LocalStrategy(1))
    estimator.train(_input_fn(MICRO))
    _assert_same(weights(estimator), trained_plainly("adam"))


def test_gradients_of_half_precision_weights_are_added_in_float32(tmp_path: Path) -> None:
    def half(name: str) -> Any:
        zeros = v1.zeros_initializer()
        return tf.cast(v1.get_variable(name, [5], tf.bfloat16, initializer=zeros), tf.float32)

    def optimizer_function(x: Any, y: Any) -> OptimizerFunctionOutput:
        loss = 1.5 * tf.reduce_mean(x)  # The gradient of each weight is 0.3.
        return OptimizerFunctionOutput(SGD(1.0, stochastic_rounding=False), loss)

    stages = [lambda x, y: (x + half("one"), y), lambda x, y: (x + half("other"), y)]
    model_fn = _pipelined(
        stages, gradient_accumulation_count=40, optimizer_function=optimizer_function
    )
    estimator = _estimator(model_fn, tmp_path).train(_input_fn(1), steps=1)
    for name in ("one", "other"):
        value = estimator.get_variable_value(name).astype(np.float32)
        np.testing.assert_allclose(value, -0.3, rtol=0.004)  # With sums in bfloat16 it is -0.309.


def test_stages_share_an_embedding(tmp_path: Path, weights: Any) -> None:
    def table() -> Any:
        with v1.variable_scope("shared", reuse=v1.AUTO_REUSE):
            return _weights("table", [9, 4])

    def look_up(words: Any, y: Any) -> Any:
        return tf.reduce_mean(tf.nn.embedding_lookup(table(), words), axis=1), y

    def name_words(hidden: Any, y: Any) -> Any:
        return tf.matmul(hidden, table(), transpose_b=True), y

    stages = [look_up, _second, name_words]
    values = []
    for model_fn, batch, folder in (
        (_plain(stages, "momentum"), MICRO * COUNT, "plain"),
        (_pipelined(stages, "momentum"), MICRO, "pipelined"),
    ):
        estimator = _estimator(model_fn, tmp_path / folder)
        estimator.train(_input_fn(batch, (WORDS, Y)))
        values.append(weights(estimator))
    _assert_same(*values)


def test_keras_layers_are_made_in_stages(tmp_path: Path, weights: Any) -> None:
    def layer(units: int) -> Any:
        start = tf_keras.initializers.GlorotUniform(seed=units)
        return tf_keras.layers.Dense(units, "tanh", kernel_initializer=start)

    stages = [
        lambda x, y: (layer(4)(x), y),
        lambda x, y: (layer(6)(x), y),
        lambda x, y: (layer(3)(x), y),
    ]
    values, results = [], []
    for model_fn, batch, folder in (
        (_plain(stages), MICRO * COUNT, "plain"),
        (_pipelined(stages), MICRO, "pipelined"),
    ):
        estimator = _estimator(model_fn, tmp_path / folder)
        estimator.train(_input_fn(batch))
        values.append(weights(estimator))
        results.append(estimator.evaluate(_input_fn(8)))
    _assert_same(*values)
    _assert_same(*results)


@pytest.mark.parametrize(
    ("kind", "loops", "has_strategy", "replicas"),
    [
        ("v1", 1, False, 1),
        ("v1", 3, True, 1),
        ("tf_keras", 3, False, 1),
        ("tf_keras", 1, True, 1),
        ("v1", 3, False, 2),
        ("tf_keras", 1, False, 2),
    ],
)
def test_each_micro_batch_moves_the_statistics_of_batch_norm_once(
    tmp_path: Path, kind: str, loops: int, has_strategy: bool, replicas: int
) -> None:
    def normalized(x: Any, y: Any) -> Any:
        if kind == "v1":
            return v1.layers.batch_normalization(x, training=True, momentum=0.5), y
        return tf_keras.layers.BatchNormalization(momentum=0.5)(x, training=True), y

    def one(x: Any, y: Any) -> Any:
        return _second(*_first(x, y))

    settings = {"train_distribute": LocalStrategy(1)} if has_strategy else {}
    model_fn = _pipelined([normalized, one, _third])
    estimator = _estimator(model_fn, tmp_path, loops=loops, replicas=replicas, **settings)
    estimator.train(_input_fn(MICRO // replicas))
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
    tmp_path: Path, weights: Any
) -> None:
    def dropping(x: Any, y: Any) -> Any:
        x, y = _second(x, y)
        return tf.nn.dropout(x, 0.5), y

    values = []
    for folder, recomputation in (("kept", False), ("recomputed", True)):
        model_fn = _pipelined([_first, dropping, _third], recomputation=recomputation)
        estimator = _estimator(model_fn, tmp_path / folder, tf_random_seed=1)
        estimator.train(_input_fn(MICRO))
        values.append(weights(estimator))
    _assert_same(*values)
    assert not np.allclose(values[0]["first"], _trained_without_dropout(tmp_path)["first"])


def _trained_without_dropout(folder: Path) -> dict[str, Any]:
    estimator = _estimator(_pipelined(), folder / "without").train(_input_fn(MICRO))
    return {"first": estimator.get_variable_value("first")}


# A mean over unequal weights, and what is reported.

COUNTS = random.randint(1, 20, len(Y)).astype(np.float32)
COUNTS[MICRO * COUNT + MICRO : MICRO * COUNT + 3 * MICRO] = 0  # Micro-batches of the second step.
WEIGHTED = (X, (Y, COUNTS))


def _weighted_pipeline(
    optimizer: str = "momentum", is_told: bool = True, **options: Any
) -> Callable[..., PipelineEstimatorSpec]:
    def optimizer_function(logits: Any, labels: Any) -> OptimizerFunctionOutput:
        loss, total, metrics = _weighted_values(logits, labels)
        told = {"loss_weight": total} if is_told else {}
        return OptimizerFunctionOutput(OPTIMIZERS[optimizer](), loss, metrics=metrics, **told)

    return _pipelined(optimizer_function=optimizer_function, **options)


def _weighted_plain(features: Any, labels: Any, mode: str, params: Any) -> tfe.EstimatorSpec:
    loss, total, metrics = _weighted_values(*_third(*_second(*_first(features, labels))))
    chosen = OPTIMIZERS[params["optimizer"]]()
    gradients, variables = zip(*chosen.compute_gradients(loss), strict=True)

    def apply(*on_host: Any) -> Any:
        return chosen.apply_gradients(zip(on_host, variables, strict=True))

    return tfe.EstimatorSpec(
        mode,
        loss=loss,
        loss_weight=total,
        host_call=(apply, gradients),
        training_metrics=metrics,
    )


class _Reported(v1.train.SessionRunHook):  # type: ignore[misc,name-defined]
    """Records the loss and the accuracy of each session call."""

    def __init__(self) -> None:
        self.values: list[Any] = []

    def before_run(self, run_context: Any) -> Any:
        loss = run_context.original_args.fetches[1]
        return v1.train.SessionRunArgs([loss, "accuracy:0"])

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.values.append(run_values.results)


@pytest.fixture(scope="module")
def weighted_plainly(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    known: dict[str, Any] = {}

    def weighted_plainly(optimizer: str) -> Any:
        if optimizer not in known:
            folder, hook = tmp_path_factory.mktemp("weighted"), _Reported()
            estimator = tfe.Estimator(_weighted_plain, folder, params={"optimizer": optimizer})
            estimator.train(_input_fn(MICRO * COUNT, WEIGHTED), hooks=[hook])
            names = estimator.get_variable_names()
            known[optimizer] = {n: estimator.get_variable_value(n) for n in names}, hook.values
        return known[optimizer]

    return weighted_plainly


@pytest.mark.parametrize(
    ("optimizer", "loops", "replicas", "options"),
    [
        ("momentum", 1, 1, {}),
        ("scaled", 1, 2, {"recomputation": True}),
        ("momentum", 1, 4, {"pipeline_schedule": "grouped", "device_mapping": [0, 1, 0]}),
        ("momentum", 3, 2, {"pipeline_schedule": "sequential"}),
    ],
    ids=str,
)
def test_each_micro_batch_counts_by_its_loss_weight(
    tmp_path: Path,
    weights: Any,
    weighted_plainly: Any,
    optimizer: str,
    loops: int,
    replicas: int,
    options: dict[str, Any],
) -> None:
    model_fn, hook = _weighted_pipeline(optimizer, **options), _Reported()
    estimator = _estimator(model_fn, tmp_path, loops=loops, replicas=replicas)
    estimator.train(_input_fn(MICRO // replicas, WEIGHTED), hooks=[hook])
    values, reported = weighted_plainly(optimizer)
    _assert_same(weights(estimator), values)
    if loops > 1:
        shares = COUNTS.reshape(STEPS, -1).sum(1)
        reported = [np.average(reported, axis=0, weights=shares)]
    np.testing.assert_allclose(hook.values, reported, atol=2e-6)


def test_a_step_without_any_weight_moves_nothing(tmp_path: Path, weights: Any) -> None:
    counts = COUNTS.copy()
    counts[MICRO * COUNT : 2 * MICRO * COUNT] = 0
    kept = np.r_[0 : MICRO * COUNT, 2 * MICRO * COUNT : len(Y)]
    trained = []
    for folder, rows in (("all", slice(None)), ("kept", kept)):
        for replicas in (1, 2):
            estimator = _estimator(
                _weighted_pipeline(), tmp_path / f"{folder}{replicas}", replicas=replicas
            )
            data = (X[rows], (Y[rows], counts[rows]))
            estimator.train(_input_fn(MICRO // replicas, data))
            trained.append(weights(estimator))
    assert [int(one.pop("global_step")) for one in trained] == [3, 3, 2, 2]
    for other in trained[1:]:
        _assert_same(other, trained[0])


def test_without_the_loss_weight_the_numbers_differ(tmp_path: Path, weights: Any) -> None:
    trained = []
    for is_told in (True, False):
        estimator = _estimator(_weighted_pipeline(is_told=is_told), tmp_path / str(is_told))
        estimator.train(_input_fn(MICRO, WEIGHTED), steps=1)
        trained.append(weights(estimator)["third_one"])
    assert np.abs(trained[0] - trained[1]).max() > 1e-3


def test_metrics_are_logged_and_summaries_are_written(
    tmp_path: Path, logged: list[str], read_events: Any, weighted_plainly: Any
) -> None:
    logging = v1.train.LoggingTensorHook(["accuracy"], every_n_iter=1)
    estimator = _estimator(_weighted_pipeline(), tmp_path, replicas=2)
    estimator.train(_input_fn(MICRO // 2, WEIGHTED), hooks=[logging], steps=1)
    [_, accuracy], *_ = weighted_plainly("momentum")[1]
    [(step, value)] = read_events(tmp_path)["accuracy"]
    assert (step, value) == (1, pytest.approx(accuracy, abs=2e-6))
    assert any(line.startswith("accuracy = ") for line in logged)


# Evaluating, predicting, exporting.


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tfe.Estimator:
    estimator = _estimator(_pipelined(), tmp_path_factory.mktemp("trained"))
    return estimator.train(_input_fn(MICRO))


def _as_trained(model_fn: Any, trained: tfe.Estimator, replicas: int = 1) -> tfe.Estimator:
    config = tfe.RunConfig(device=tfe.DeviceConfig(num_replicas=replicas))
    return tfe.Estimator(model_fn, trained.model_dir, config)


@pytest.mark.parametrize("replicas", [1, 2])
def test_evaluate_tells_what_one_device_tells(trained: tfe.Estimator, replicas: int) -> None:
    # The last batch is smaller, which is refused in training alone.
    input_fn: Any = lambda: tf.data.Dataset.from_tensor_slices((X, Y)).batch(10)  # noqa: E731
    places: dict[str, set[str]] = {}

    def stage(number: int) -> Callable[..., Any]:
        def placed(x: Any, y: Any) -> Any:
            places.setdefault(str(number), set()).add(tf.identity(x).device)
            return STAGES[number](x, y)

        return placed

    pipelined = _as_trained(_pipelined([stage(i) for i in range(3)]), trained, replicas)
    plain = _as_trained(_plain(), trained, replicas)
    _assert_same(pipelined.evaluate(input_fn), plain.evaluate(input_fn))
    assert places == {
        str(i): {f"/device:CPU:{1 + i + 3 * r}" for r in range(replicas)} for i in range(3)
    }


def _logits(trained: tfe.Estimator) -> Any:
    value = trained.get_variable_value
    hidden = np.maximum(X @ value("first"), 0)
    return np.tanh(hidden @ value("second_") + value("bias")) @ value("third_one")


def test_predict_yields_a_tensor(trained: tfe.Estimator) -> None:
    found = np.stack(list(trained.predict(_input_fn(8, X))))
    np.testing.assert_allclose(found, _logits(trained), atol=1e-6)


def _with_dict() -> Callable[..., PipelineEstimatorSpec]:
    return _pipelined([_first, _second, lambda x, y=0: ({"logits": _third(x)[0]},)])


def test_predict_yields_dicts(trained: tfe.Estimator) -> None:
    found = list(_as_trained(_with_dict(), trained).predict(_input_fn(8, X)))
    np.testing.assert_allclose([one["logits"] for one in found], _logits(trained), atol=1e-6)


def test_an_export_serves_on_a_machine_with_one_device(
    tmp_path: Path, trained: tfe.Estimator
) -> None:
    def receiver_fn() -> Any:
        x = v1.placeholder(tf.float32, [None, 5], name="x")
        return tfe.export.TensorServingInputReceiver(x, x)

    folder = _as_trained(_with_dict(), trained).export_saved_model(tmp_path, receiver_fn)
    with tf.Graph().as_default(), v1.Session() as session:
        loaded = v1.saved_model.load(session, ["serve"], folder.decode())
        [output] = loaded.signature_def["serving_default"].outputs.values()
        [given] = loaded.signature_def["serving_default"].inputs.values()
        found = session.run(output.name, {given.name: X})
    np.testing.assert_allclose(found, _logits(trained), atol=1e-6)


def test_the_graph_of_training_is_not_exported(tmp_path: Path, trained: tfe.Estimator) -> None:
    receiver_fn = tfe.experimental.build_raw_supervised_input_receiver_fn(
        tf.constant(X[:MICRO]), tf.constant(Y[:MICRO])
    )
    with pytest.raises(ValueError, match=r"training graph of a pipeline cannot be exported"):
        trained.export_saved_model(tmp_path, receiver_fn, experimental_mode="train")


def test_added_metrics_are_evaluated_and_the_new_estimator_trains(
    tmp_path: Path, trained_plainly: Any, weights: Any
) -> None:
    def mean_label(labels: Any) -> dict[str, Any]:
        return {"mean_label": v1.metrics.mean(labels)}

    own = _estimator(_pipelined(optimizer="adam"), tmp_path, replicas=2)
    estimator = tfe.add_metrics(own, mean_label)
    estimator.train(_input_fn(MICRO // 2))
    _assert_same(weights(estimator), trained_plainly("adam"))
    assert estimator.evaluate(_input_fn(8))["mean_label"] == pytest.approx(Y.mean())


# Checkpoints.


@pytest.mark.parametrize(
    ("begins", "goes_on"),
    [("pipelined", "pipelined"), ("plain", "pipelined"), ("pipelined", "plain")],
)
def test_a_training_goes_on_where_another_one_has_ended(
    tmp_path: Path, weights: Any, trained_plainly: Any, begins: str, goes_on: str
) -> None:
    ways = {"pipelined": (_pipelined, MICRO), "plain": (_plain, MICRO * COUNT)}

    def train(way: str, steps: int, skipped: int) -> tfe.Estimator:
        make, batch = ways[way]
        examples = skipped * MICRO * COUNT
        estimator = _estimator(make(optimizer="adam"), tmp_path)
        return estimator.train(_input_fn(batch, (X[examples:], Y[examples:])), steps=steps)

    train(begins, 1, 0)
    _assert_same(weights(train(goes_on, STEPS - 1, 1)), trained_plainly("adam"))


def test_a_pipeline_starts_with_the_weights_of_another_model(
    tmp_path: Path, trained: tfe.Estimator
) -> None:
    estimator = tfe.Estimator(
        _pipelined(), tmp_path, warm_start_from=trained.model_dir, params=None
    )
    found = np.stack(list(estimator.predict(_input_fn(8, X))))
    np.testing.assert_allclose(found, _logits(trained), atol=1e-6)
    estimator.train(_input_fn(MICRO, (X * 0, Y)), steps=1)  # No gradient of the first weights.
    first = estimator.get_variable_value("first")
    np.testing.assert_allclose(first, trained.get_variable_value("first"), atol=1e-6)


# What is seen of it.


def test_hooks_and_summaries_see_the_first_micro_batch(
    tmp_path: Path, logged: list[str], read_events: Any
) -> None:
    seen: list[Any] = []

    class Notes(v1.train.SessionRunHook):  # type: ignore[misc,name-defined]
        def before_run(self, run_context: Any) -> Any:
            return v1.train.SessionRunArgs("hidden:0")

        def after_run(self, run_context: Any, run_values: Any) -> None:
            seen.append(run_values.results)

    logging = v1.train.LoggingTensorHook(["hidden:0"], every_n_iter=1)
    _estimator(_pipelined(), tmp_path).train(_input_fn(MICRO), hooks=[Notes(), logging], steps=1)

    def start(name: str, *shape: int) -> Any:
        return np.random.RandomState(len(name)).randn(*shape) / 2

    hidden = np.maximum(X[:MICRO] @ start("first", 5, 4), 0)
    hidden = np.tanh(hidden @ start("second_", 4, 4) + start("bias", 4))
    np.testing.assert_allclose(seen, [hidden], atol=1e-6)
    assert any(line.startswith("hidden:0 = ") for line in logged)
    [(step, mean)] = read_events(tmp_path)["mean_of_hidden"]
    assert (step, mean) == (1, pytest.approx(hidden.mean(), abs=1e-6))


def test_the_log_says_which_devices_the_gradients_come_from(
    tmp_path: Path, logged: list[str]
) -> None:
    estimator = _estimator(_pipelined(), tmp_path)
    estimator.train(_input_fn(MICRO), steps=1)
    devices = "/device:CPU:1, /device:CPU:2 and /device:CPU:3"
    assert f"host_call: 4 gradients (208 bytes) from {devices} to /device:CPU:0" in logged
    assert "Calling model_fn." in logged


# What the input may be.


def test_features_may_be_a_dict_and_labels_may_be_missing(tmp_path: Path, weights: Any) -> None:
    def first(features: Any) -> Any:
        return _first(features["x"], features["y"])

    data = {"y": Y, "x": X}
    estimator = _estimator(_pipelined([first, _second, _third], "adam"), tmp_path / "dict")
    estimator.train(_input_fn(MICRO, data))
    other = _estimator(_pipelined(optimizer="adam"), tmp_path / "pair").train(_input_fn(MICRO))
    _assert_same(weights(estimator), weights(other))


def test_micro_batches_that_are_too_few_for_a_step_are_left(tmp_path: Path, weights: Any) -> None:
    examples = MICRO * (2 * COUNT + 1)
    estimator = _estimator(_pipelined(), tmp_path)
    estimator.train(_input_fn(MICRO, (X[:examples], Y[:examples])))
    assert weights(estimator)["global_step"] == 2


def test_train_and_evaluate_runs_a_pipeline(tmp_path: Path) -> None:
    results, _ = tfe.train_and_evaluate(
        _estimator(_pipelined(), tmp_path),
        tfe.TrainSpec(_input_fn(MICRO), max_steps=2),
        tfe.EvalSpec(_input_fn(8), steps=None, start_delay_secs=0, throttle_secs=0),
    )
    assert results["global_step"] == 2
    assert results["loss"] > 0


# What is refused, when the spec is made.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "fit"}, "Unknown mode: 'fit'"),
        ({"computational_stages": [_first]}, "at least two computational stages, got 1"),
        ({"computational_stages": _first}, "must be a list of functions, got <function _first"),
        ({"gradient_accumulation_count": 4}, r"is 4, and .* of 3 stages needs at least 5 \(2 x 3"),
        ({"gradient_accumulation_count": None}, "must contain gradient_accumulation_count when"),
        ({"gradient_accumulation_count": 0}, "an integer of at least 1, got 0"),
        ({"gradient_accumulation_count": True}, "an integer of at least 1, got True"),
        ({"optimizer_function": None}, "must contain optimizer_function when training"),
        ({"optimizer_function": 3}, "optimizer_function must be a function, got 3"),
        ({"mode": "eval", "eval_metrics_fn": None}, "must contain eval_metrics_fn when evaluating"),
        ({"device_mapping": [0, 1]}, "device_mapping has 2 devices for 3 stages"),
        ({"device_mapping": [0, 1, -1]}, r"a list of integers from 0 on, got \[0, 1, -1\]"),
        ({"device_mapping": [0, 1, 0]}, r'\[0, 1, 0\] has a device twice, .* "grouped" or'),
        ({"pipeline_schedule": "both"}, "must be 'grouped', 'interleaved' or 'sequential', got"),
        ({"reduction_method": "max"}, 'must be "mean" or "sum", got \'max\''),
    ],
)
def test_a_spec_that_does_not_fit_is_refused(options: dict[str, Any], message: str) -> None:
    settings = {
        "mode": "train",
        "computational_stages": STAGES,
        "gradient_accumulation_count": COUNT,
        "optimizer_function": print,
    }
    with pytest.raises((TypeError, ValueError), match=message):
        PipelineEstimatorSpec(**{**settings, **options})


def test_fewer_micro_batches_do_one_after_the_other(tmp_path: Path) -> None:
    model_fn = _pipelined(gradient_accumulation_count=1, pipeline_schedule="sequential")
    estimator = _estimator(model_fn, tmp_path).train(_input_fn(MICRO), steps=2)
    assert estimator.get_variable_value("global_step") == 2


class _OwnGradients(v1.train.GradientDescentOptimizer):  # type: ignore[misc,name-defined]
    def compute_gradients(self, loss: Any, *args: Any, **kwargs: Any) -> Any:
        return super().compute_gradients(loss * 2, *args, **kwargs)


@pytest.mark.parametrize(
    ("opt", "loss", "message"),
    [
        ("sgd", 1.0, "opt of OptimizerFunctionOutput must be an optimizer .*, got 'sgd'"),
        (None, 1.0, "loss of OptimizerFunctionOutput must be a tensor, got 1.0"),
        (None, [1.0], r"must be a scalar of floating type, got shape \(1,\) of float32"),
        (_OwnGradients(0.1), 1.0, "_OwnGradients has a compute_gradients of its own"),
        (ClippedOptimizer(_OwnGradients(0.1)), 1.0, "ClippedOptimizer has a compute_gradients of"),
    ],
    ids=["opt", "loss", "shape", "own", "wrapped"],
)
def test_an_output_of_another_kind_is_refused(opt: Any, loss: Any, message: str) -> None:
    with tf.Graph().as_default(), pytest.raises((TypeError, ValueError), match=message):
        OptimizerFunctionOutput(
            OPTIMIZERS["sgd"]() if opt is None else opt,
            tf.constant(loss) if isinstance(loss, list) else loss,
        )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"loss_weight": -1.0}, r"loss_weight must not be negative, got -1\.0"),
        ({"loss_weight": [1.0]}, r"loss_weight must be a scalar number, got shape \(1,\)"),
        ({"metrics": [1.0]}, "must be a dict of name to tensor, got"),
        ({"metrics": {"a": 1.0}}, "training metric 'a' must be Tensor, given: 1.0"),
        ({"metrics": {"a": [1.0]}}, r"metric 'a' must be a scalar of floating .* shape \(1,\)"),
        ({"metrics": {"a b": []}}, "'a b' is no name for a training metric: use letters"),
        ({"metrics": {"loss": []}}, "'loss' is no name .* The loss is reported by itself"),
    ],
    ids=str,
)
def test_a_loss_weight_or_metric_of_another_kind_is_refused(
    given: dict[str, Any], message: str
) -> None:
    def as_tensor(value: Any) -> Any:
        return tf.constant(value) if isinstance(value, list) else value

    with tf.Graph().as_default(), pytest.raises((TypeError, ValueError), match=message):
        weight = as_tensor(given.get("loss_weight"))
        metrics = given.get("metrics")
        if isinstance(metrics, dict):
            metrics = {name: as_tensor(value) for name, value in metrics.items()}
        OptimizerFunctionOutput(OPTIMIZERS["sgd"](), tf.constant(1.0), weight, metrics)


# What is refused, when the model is built.


def _reports_a_taken_name(logits: Any, labels: Any) -> OptimizerFunctionOutput:
    mean = tf.reduce_mean(logits, name="mean")
    return OptimizerFunctionOutput(OPTIMIZERS["sgd"](), mean, metrics={"mean": mean})


def _has_a_negative_weight(logits: Any, labels: Any) -> OptimizerFunctionOutput:
    loss = _loss(logits, labels)
    return OptimizerFunctionOutput(OPTIMIZERS["sgd"](), loss, loss_weight=-loss)


def test_accumulation_of_the_device_is_refused(tmp_path: Path) -> None:
    config = tfe.RunConfig(device=tfe.DeviceConfig(gradient_accumulation=2))
    message = "gradient_accumulation of DeviceConfig is 2, and a pipeline has its own: .*which is 6"
    with pytest.raises(ValueError, match=message):
        tfe.Estimator(_pipelined(), tmp_path, config).train(_input_fn(MICRO))


def _takes_features(features: Any, labels: Any, mode: str) -> Any:
    return _pipelined()(mode)


def _makes_another_spec(mode: str) -> Any:
    return tfe.EstimatorSpec(mode, loss=tf.constant(1.0), train_op=tf.no_op())


def _has_another_mode(mode: str) -> Any:
    return _pipelined()(tfe.ModeKeys.PREDICT)


def _uses_the_body(mode: str) -> Any:
    factor = tf.exp(v1.get_variable("log", [], tf.float32))
    return _pipelined([_first, lambda x, y: (x * factor, y), _third])(mode)


def _uses_an_updater(x: Any, y: Any) -> Any:
    v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, v1.print("seen"))
    return x, y


@pytest.mark.parametrize(
    ("model_fn", "message"),
    [
        (_takes_features, "PipelineEstimatorSpec must not have `features` or `labels`"),
        (_makes_another_spec, "without features must return a PipelineEstimatorSpec, got"),
        (_has_another_mode, "mode 'train' and returned a PipelineEstimatorSpec for 'infer'"),
        (_uses_the_body, r"a stage uses Exp at test_pipelined.py:\d+: .*outside of all stages"),
        (_pipelined(optimizer_function=_loss), "must return .*OptimizerFunctionOutput, got <tf"),
        (_pipelined([_uses_an_updater, _first]), "UPDATE_OPS has PrintV2 at test_pipelined.py"),
        (
            _pipelined(optimizer_function=_reports_a_taken_name),
            "metric 'mean' gets a tensor of that name, and the model has one of that name already",
        ),
        (
            _pipelined(optimizer_function=_has_a_negative_weight, reduction_method="sum"),
            'reduction_method="sum" adds up .* Set reduction_method="mean", or leave loss_weight',
        ),
        (
            _pipelined([lambda x, y: (x[:, :3], y), lambda x, y: (x, y)]),
            "no variable of the pipeline gets a gradient",
        ),
    ],
    ids=["features", "spec", "mode", "body", "output", "update", "name", "sum", "nothing"],
)
def test_a_model_that_is_no_pipeline_is_refused(
    tmp_path: Path, model_fn: Any, message: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        _estimator(model_fn, tmp_path).train(_input_fn(MICRO), steps=1)


def test_a_negative_loss_weight_ends_the_training(tmp_path: Path) -> None:
    estimator = _estimator(_pipelined(optimizer_function=_has_a_negative_weight), tmp_path)
    with pytest.raises(tf.errors.InvalidArgumentError, match="loss_weight must not be negative"):
        estimator.train(_input_fn(MICRO), steps=1)


def test_what_v1_switches_off_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def old(x: Any, y: Any) -> Any:
        return x * v1.get_variable("old", [], use_resource=False), y

    estimator = _estimator(_pipelined([old, _first]), tmp_path)
    with pytest.raises(ValueError, match=r"needs resource variables, and 'old' is none\. Call"):
        estimator.train(_input_fn(MICRO), steps=1)
    monkeypatch.setattr(v1, "control_flow_v2_enabled", lambda: False)
    with pytest.raises(ValueError, match="iterations_per_loop=3 with a pipeline needs"):
        _estimator(_pipelined(), tmp_path, loops=3).train(_input_fn(MICRO))


@pytest.mark.parametrize(
    ("input_fn", "message"),
    [
        (lambda: (tf.constant(X), tf.constant(Y)), "must return a tf.data.Dataset .*, got tuple"),
        (
            lambda: tf.data.Dataset.from_tensor_slices((X, Y)).batch(MICRO),
            r"all have one shape, and the input has TensorSpec\(shape=\(None, 5\)",
        ),
    ],
    ids=["tensors", "size"],
)
def test_an_input_without_micro_batches_is_refused(
    tmp_path: Path, input_fn: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        _estimator(_pipelined(), tmp_path).train(input_fn, steps=1)


def test_too_few_devices_for_the_replicas_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda _: ["GPU"] * 4)
    estimator = _estimator(_pipelined(), tmp_path, replicas=2)
    message = (
        r"2 replicas of 3 devices from /device:GPU:0 on need 6 GPUs: this machine has "
        r"/device:GPU:0, .*, /device:GPU:3\. Set num_replicas to 1 at most, or device to"
    )
    with pytest.raises(DeviceError, match=message):
        estimator.train(_input_fn(MICRO), steps=1)


@pytest.mark.parametrize(
    ("found", "kind", "message"),
    [
        (1.0, TypeError, "eval_metrics_fn must return a dict, got 1.0"),
        ({"accuracy": 1.0}, KeyError, r"must contain 'loss', a tensor; it has \['accuracy'\]"),
    ],
    ids=["kind", "loss"],
)
def test_metrics_of_another_kind_are_refused(
    trained: tfe.Estimator, found: Any, kind: Any, message: str
) -> None:
    estimator = _as_trained(_pipelined(eval_metrics_fn=lambda *_: found), trained)
    with pytest.raises(kind, match=message):
        estimator.evaluate(_input_fn(8))


def test_several_predictions_without_a_dict_are_refused(trained: tfe.Estimator) -> None:
    stages = [_first, _second, lambda x, y=0: (_third(x), y)]
    estimator = _as_trained(_pipelined(computational_stages=stages), trained)
    with pytest.raises(ValueError, match=r"exactly one prediction tensor, or a dict .*, got 2"):
        next(estimator.predict(_input_fn(8, X)))
