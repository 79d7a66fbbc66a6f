"""Several replicas of the model in one process: metrics, input, stock strategies, refusals."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

import tfdist.estimator as tfe
from tfdist.estimator.graph.replicas import num_local_replicas, training_strategy
from tfdist.strategies import DeviceError, LocalStrategy

EvalFn = Callable[..., tfe.EstimatorSpec]


def _examples(count: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.RandomState(0)
    scores, thresholds = random.rand(2, 100, 1).astype(np.float32)
    return scores[:count], (thresholds < scores).astype(np.float32)[:count]


def _input_fn(batches: int, batch_size: int = 4) -> Callable[[], tf.data.Dataset]:
    def input_fn() -> tf.data.Dataset:
        examples = _examples(batches * batch_size)
        return tf.data.Dataset.from_tensor_slices(examples).batch(batch_size)

    return input_fn


def _metrics(scores: tf.Tensor, labels: tf.Tensor) -> dict[str, Any]:
    keras_auc = tf.keras.metrics.AUC(num_thresholds=50)
    keras_auc.update_state(labels, scores)
    return {
        "rmse": v1.metrics.root_mean_squared_error(labels, scores),
        "auc": v1.metrics.auc(labels, scores, num_thresholds=50),
        "keras_auc": keras_auc,
    }


def _model(where: str) -> EvalFn:
    """Returns a model_fn whose metrics are made on the device, or on the host."""

    def model_fn(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
        scores = features * v1.get_variable("scale", [], initializer=v1.ones_initializer())
        loss = tf.reduce_mean(tf.square(scores - labels))
        if where == "device":
            return tfe.EstimatorSpec(mode, loss=loss, eval_metric_ops=_metrics(scores, labels))
        return tfe.EstimatorSpec(mode, loss=loss, eval_metrics=(_metrics, [scores, labels]))

    return model_fn


def _with_replicas(number: int) -> tfe.RunConfig:
    return tfe.RunConfig(device=tfe.DeviceConfig(num_replicas=number))


@pytest.mark.parametrize(("where", "replicas", "batches"), [("device", 2, 5), ("host", 3, 2)])
def test_metrics_are_those_of_all_batches(where: str, replicas: int, batches: int) -> None:
    model_fn = _model(where)
    one = tfe.Estimator(model_fn).evaluate(_input_fn(batches))
    several = tfe.Estimator(model_fn, config=_with_replicas(replicas)).evaluate(_input_fn(batches))
    scores, labels = _examples(batches * 4)
    assert several["rmse"] == pytest.approx(np.sqrt(np.mean((scores - labels) ** 2)), abs=1e-6)
    assert several == pytest.approx(one, abs=1e-6)


def test_metrics_that_are_named_after_their_scope_are_shared_by_replicas() -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
        scores = tf.concat([features, 0.5 - labels, features * labels], axis=1)  # [batch, 3]
        label = tf.cast(labels, tf.int64)
        metrics = {
            "recall": v1.metrics.recall_at_k(label, scores, 1),
            "recall of 1": v1.metrics.recall_at_k(label, scores, 2, class_id=1),
            "precision": v1.metrics.precision_at_k(label, scores, 2),
            "average": v1.metrics.average_precision_at_k(label, scores, 3),
        }
        loss = tf.reduce_mean(features)
        return tfe.EstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)

    one = tfe.Estimator(model_fn).evaluate(_input_fn(12))
    several = tfe.Estimator(model_fn, config=_with_replicas(2)).evaluate(_input_fn(12))
    assert several == pytest.approx(one, abs=1e-6)
    assert 0 < one["recall"] < 1


def test_whole_batches_of_predictions_are_those_of_all_replicas() -> None:
    def model_fn(features: Any, mode: str) -> tfe.EstimatorSpec:
        predictions = {"double": 2 * features, "mean": tf.reduce_mean(features)}
        return tfe.EstimatorSpec(mode, predictions=predictions)

    def input_fn() -> tf.data.Dataset:
        return tf.data.Dataset.range(10, output_type=tf.float32).batch(2)

    estimator = tfe.Estimator(model_fn, config=_with_replicas(2))
    batches = list(estimator.predict(input_fn, yield_single_examples=False))
    assert [batch["double"].tolist() for batch in batches] == [
        [0, 2, 4, 6],
        [8, 10, 12, 14],
        [16, 18],
    ]
    assert batches[0]["mean"].tolist() == [0.5, 2.5]


def test_a_step_of_evaluation_takes_a_batch_for_each_replica() -> None:
    model_fn = _model("device")
    some = tfe.Estimator(model_fn, config=_with_replicas(2)).evaluate(_input_fn(10), steps=2)
    assert some["rmse"] == pytest.approx(tfe.Estimator(model_fn).evaluate(_input_fn(4))["rmse"])


def test_statistics_of_batch_norm_reach_every_replica_that_evaluates(
    tmp_path: Any, logged: list[str]
) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
        training = mode == tfe.ModeKeys.TRAIN
        normal = v1.layers.batch_normalization(features, training=training, momentum=0.1)
        loss = tf.reduce_mean(tf.square(normal - labels))
        with tf.control_dependencies(v1.get_collection(v1.GraphKeys.UPDATE_OPS)):
            train_op = v1.train.GradientDescentOptimizer(0.1).minimize(
                loss, v1.train.get_global_step()
            )
        return tfe.EstimatorSpec(mode, loss=loss, train_op=train_op)

    tfe.Estimator(model_fn, tmp_path, _with_replicas(2)).train(_input_fn(6))
    one = tfe.Estimator(model_fn, tmp_path).evaluate(_input_fn(4))
    two = tfe.Estimator(model_fn, tmp_path, _with_replicas(2)).evaluate(_input_fn(4))
    assert one["loss"] == pytest.approx(two["loss"], abs=1e-6)
    assert not [line for line in logged if "serializing" in line]


def test_training_ends_where_the_input_has_no_batch_for_each_replica(
    make: Any, numbers: Any
) -> None:
    estimator = make(device={"num_replicas": 2})
    estimator.train(numbers(batches=7))
    assert estimator.get_variable_value("global_step") == 3
    with pytest.raises(ValueError, match="too short"):
        make(folder="three", device={"num_replicas": 3}).train(numbers(batches=2))


def test_each_replica_finds_its_own_losses_and_one_writes_summaries(
    tmp_path: Any, read_events: Any
) -> None:
    totals = []

    def model_fn(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
        weight = v1.get_variable("weight", [], initializer=v1.zeros_initializer())
        v1.losses.mean_squared_error(labels, features * weight)
        totals.append(len(v1.losses.get_losses()))
        loss = v1.losses.get_total_loss()
        v1.summary.scalar("own", loss)
        train_op = v1.train.GradientDescentOptimizer(0.1).minimize(loss)
        return tfe.EstimatorSpec(mode, loss=loss, train_op=train_op)

    config = tfe.RunConfig(device=tfe.DeviceConfig(num_replicas=2), save_summary_steps=1)
    tfe.Estimator(model_fn, tmp_path, config).train(_input_fn(4))
    assert totals == [1, 1]
    assert {"loss", "own"} <= read_events(tmp_path).keys()
    assert not [tag for tag in read_events(tmp_path) if "replica" in tag]


def test_the_batches_of_a_step_reach_the_replicas_in_order() -> None:
    seen = []

    def model_fn(features: Any, mode: str) -> tfe.EstimatorSpec:
        weight = v1.get_variable("weight", [], initializer=v1.zeros_initializer())
        replica = len(seen)
        seen.append([])
        record = tf.numpy_function(lambda x: seen[replica].append(int(x)), [features], [])
        with tf.control_dependencies([record]):
            loss = tf.cast(features, tf.float32) * weight
        train_op = v1.train.GradientDescentOptimizer(0.1).minimize(loss)
        return tfe.EstimatorSpec(mode, loss=loss, train_op=train_op)

    tfe.Estimator(model_fn, config=_with_replicas(2)).train(lambda: tf.data.Dataset.range(6))
    assert seen == [[0, 2, 4], [1, 3, 5]]


# Stock strategies and refusals.


def test_a_mirrored_strategy_runs_with_as_many_replicas(dense: Any, numbers: Any) -> None:
    for strategy in (
        tf.distribute.MirroredStrategy(["CPU:0"]),
        tf.distribute.OneDeviceStrategy("CPU:0"),
    ):
        config = tfe.RunConfig(train_distribute=strategy, eval_distribute=strategy)
        own = training_strategy(config)
        assert isinstance(own, LocalStrategy)
        assert own.extended.worker_devices == ("/device:CPU:1",)
        estimator = tfe.Estimator(dense(), config=config).train(numbers(), steps=2)
        assert estimator.evaluate(numbers(batches=2))["global_step"] == 2


def test_a_strategy_brings_its_own_number_of_replicas() -> None:
    config = tfe.RunConfig(train_distribute=LocalStrategy(num_replicas=3))
    assert num_local_replicas(config, None) == 3
    assert num_local_replicas(_with_replicas(2), None) == 2


def test_two_numbers_of_replicas_are_refused(dense: Any, numbers: Any) -> None:
    config = _with_replicas(2).replace(train_distribute=LocalStrategy(3))
    with pytest.raises(ValueError, match=r"num_replicas=2, but LocalStrategy has 3"):
        tfe.Estimator(dense(), config=config).train(numbers(), steps=1)


def test_more_replicas_than_gpus_or_none_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="num_replicas must be an integer of at least 1"):
        LocalStrategy(0)
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["GPU:0", "GPU:1"])
    assert LocalStrategy(2).extended.worker_devices == ("/device:GPU:0", "/device:GPU:1")
    with pytest.raises(DeviceError, match="3 replicas from /device:GPU:0 on need 3 GPUs"):
        LocalStrategy(3)
