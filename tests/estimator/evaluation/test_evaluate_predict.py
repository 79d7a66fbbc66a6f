"""Estimator.evaluate and Estimator.predict."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1
import tf_keras

import tfdist.estimator as tfe
from tfdist.strategies import LocalStrategy

Make = Callable[..., Any]


@pytest.fixture
def trained(dense: Make, numbers: Make, tmp_path: Path) -> tfe.Estimator:
    """An Estimator after two steps, with checkpoints 0, 1 and 2."""
    config = tfe.RunConfig(
        save_checkpoints_steps=1, save_summary_steps=None, log_step_count_steps=None
    )
    return tfe.Estimator(dense(), tmp_path, config).train(numbers(), steps=2)


def _four_numbers() -> tf.data.Dataset:
    """Batches [1, 2] and [3, 4]."""
    return tf.data.Dataset.from_tensor_slices([1.0, 2.0, 3.0, 4.0]).batch(2)


@pytest.fixture
def untrained(tmp_path: Path) -> Callable[[Any], tfe.Estimator]:
    """Makes an Estimator of whatever `spec(features, mode)` returns; the loss is their sum."""

    def untrained(spec: Callable[[Any, str], dict[str, Any]]) -> tfe.Estimator:
        def model_fn(features: Any, mode: str) -> tfe.EstimatorSpec:
            loss = None if isinstance(features, dict) else tf.reduce_sum(features)
            return tfe.EstimatorSpec(mode, **{"loss": loss, **spec(features, mode)})

        return tfe.Estimator(model_fn, tmp_path)

    return untrained


# evaluate: the numbers.


def test_the_result_has_metrics_loss_and_global_step(trained: tfe.Estimator, numbers: Make) -> None:
    result = trained.evaluate(numbers(), steps=2)
    assert result.keys() == {"mae", "loss", "global_step"}
    assert (result["global_step"], result["global_step"].dtype) == (2, np.int64)
    assert isinstance(result["loss"], np.float32) and np.isfinite(result["mae"])


def test_the_loss_is_the_mean_over_steps_not_examples(untrained: Make) -> None:
    def batches() -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices([1.0, 2.0, 3.0]).batch(2)

    assert untrained(lambda features, mode: {}).evaluate(batches)["loss"] == (3.0 + 3.0) / 2


def test_steps_limit_the_evaluation(untrained: Make, logged: list[str]) -> None:
    estimator = untrained(lambda features, mode: {})
    assert estimator.evaluate(_four_numbers, steps=1)["loss"] == 3.0
    assert "Evaluation [1/1]" in logged
    assert estimator.evaluate(_four_numbers, steps=9)["loss"] == 5.0
    assert estimator.evaluate(_four_numbers)["loss"] == 5.0


@pytest.mark.parametrize("strategy", [None, LocalStrategy(num_replicas=2)])
def test_an_empty_model_dir_is_a_warning_and_gives_the_same_numbers_in_each_process(
    numbers: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture, strategy: Any
) -> None:
    """Each worker evaluates alone, and makes the initial weights by itself."""

    def model_fn(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
        output = v1.layers.dense(features["x"], 3)
        if mode == tfe.ModeKeys.PREDICT:
            return tfe.EstimatorSpec(mode, predictions=output)
        return tfe.EstimatorSpec(mode, loss=tf.reduce_mean(tf.square(output - labels)))

    results = []
    for worker in ("0", "1"):
        config = tfe.RunConfig(train_distribute=strategy)
        estimator = tfe.Estimator(model_fn, tmp_path / worker, config)
        with caplog.at_level("WARNING", logger="tensorflow"):
            loss = estimator.evaluate(numbers(batches=2))["loss"]
            rows = list(estimator.predict(numbers(batches=1)))
        results.append([loss, *np.ravel(rows)])
        reported = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
        assert sum(f"in model_dir: {tmp_path / worker}," in line for line in reported) == 2
    assert results[0] == results[1]


def test_the_newest_checkpoint_is_evaluated_unless_another_is_named(
    trained: tfe.Estimator, numbers: Make
) -> None:
    newest = trained.evaluate(numbers(), steps=4)
    older = trained.evaluate(
        numbers(), steps=4, checkpoint_path=f"{trained.model_dir}/model.ckpt-0"
    )
    assert (newest["global_step"], older["global_step"]) == (2, 0)
    assert newest["loss"] < older["loss"]


def _mean_of(tensor: tf.Tensor) -> dict[str, Any]:
    zeros = tf.zeros_like(tensor)
    return {
        "mean": v1.metrics.mean(tensor),
        "root": v1.metrics.root_mean_squared_error(zeros, tensor),
    }


@pytest.mark.parametrize("container", ["list", "dict"])
def test_eval_metrics_on_the_host_equal_eval_metric_ops(untrained: Make, container: str) -> None:
    devices = []

    def of_function(tensor: tf.Tensor) -> dict[str, Any]:
        devices.append(tf.add(tensor, 0.0).device)
        return _mean_of(tensor)

    def spec(features: Any, mode: str) -> dict[str, Any]:
        tensors = [features] if container == "list" else {"tensor": features}
        return {"eval_metrics": (of_function, tensors)}

    on_host = untrained(spec).evaluate(_four_numbers)
    on_device = untrained(lambda features, mode: {"eval_metric_ops": _mean_of(features)})
    assert on_host == on_device.evaluate(_four_numbers)
    assert on_host["mean"] == 2.5
    assert devices == ["/device:CPU:0"]


def _on_host(result: Callable[[tf.Tensor], Any]) -> Callable[[tf.Tensor], dict[str, Any]]:
    return lambda features: {"eval_metrics": (result, [features])}


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        (
            lambda x: {"eval_metrics": (_mean_of, [x]), "eval_metric_ops": _mean_of(x)},
            ValueError,
            "cannot contain both eval_metric_ops and eval_metrics",
        ),
        (
            _on_host(lambda x: None),
            TypeError,
            "eval_metrics must return a dict of metrics, got None",
        ),
        (
            _on_host(lambda x: {"mean": 1.0}),
            TypeError,
            "Values of eval_metric_ops must be .* for key: mean",
        ),
        (
            _on_host(lambda x: {"loss": v1.metrics.mean(x)}),
            ValueError,
            "Metric with name `loss` is not allowed",
        ),
        (
            lambda x: {"eval_metric_ops": {"global_step": v1.metrics.mean(x)}},
            ValueError,
            "Metric with name `global_step` is not allowed",
        ),
    ],
    ids=["both kinds", "no dict", "no metric", "loss", "global_step"],
)
def test_metrics_that_cannot_be_evaluated_are_refused(
    untrained: Make, fields: Make, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        untrained(lambda features, mode: fields(features)).evaluate(_four_numbers)


@pytest.mark.parametrize("is_on_host", [False, True])
def test_keras_metrics_are_evaluated(untrained: Make, is_on_host: bool) -> None:
    def metrics(numbers: tf.Tensor) -> dict[str, Any]:
        mean = tf_keras.metrics.Mean()
        mean.update_state(numbers)
        return {"mean": mean}

    def spec(features: Any, mode: str) -> dict[str, Any]:
        if is_on_host:
            return {"eval_metrics": (metrics, [features])}
        return {"eval_metric_ops": metrics(features)}

    assert untrained(spec).evaluate(_four_numbers)["mean"] == 2.5


def test_a_nested_value_comes_back_nested(untrained: Make) -> None:
    def spec(features: Any, mode: str) -> dict[str, Any]:
        mean, update = v1.metrics.mean(features)
        return {"eval_metric_ops": {"nested": ({"mean": mean, "both": [mean, mean]}, update)}}

    assert untrained(spec).evaluate(_four_numbers)["nested"] == {"mean": 2.5, "both": [2.5, 2.5]}


def test_the_specs_own_local_init_op_runs_beside_the_default_one(untrained: Make) -> None:
    def spec(features: Any, mode: str) -> dict[str, Any]:
        own = v1.get_variable("own", [], collections=["mine"])
        local = v1.get_local_variable("local", [], initializer=v1.ones_initializer())
        return {
            "eval_metric_ops": {"own": (own + 0.0, tf.no_op()), "local": (local + 0.0, tf.no_op())},
            "scaffold": v1.train.Scaffold(local_init_op=own.assign(7.0)),
        }

    result = untrained(spec).evaluate(_four_numbers)
    assert (result["own"], result["local"]) == (7.0, 1.0)


class Count(v1.train.SessionRunHook):  # type: ignore[misc]
    """Records its name at each session call."""

    def __init__(self, name: str, runs: list[str]) -> None:
        self.name, self.runs = name, runs

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.runs.append(self.name)


@pytest.mark.parametrize("mode", ["evaluation", "prediction"])
def test_hooks_of_caller_and_spec_run_once_a_batch(untrained: Make, mode: str) -> None:
    runs: list[str] = []
    estimator = untrained(
        lambda features, _: {"predictions": features, f"{mode}_hooks": [Count("spec", runs)]}
    )
    hooks = [Count("caller", runs)]
    if mode == "evaluation":
        estimator.evaluate(_four_numbers, hooks=hooks)
    else:
        list(estimator.predict(_four_numbers, hooks=hooks))
    assert runs == ["caller", "spec"] * 2


# evaluate: files and log.


def test_results_are_written_for_tensorboard(
    trained: tfe.Estimator, numbers: Make, read_events: Make, logged: list[str]
) -> None:
    result = trained.evaluate(numbers(), steps=1)
    events = read_events(f"{trained.model_dir}/eval")
    assert events["mae"] == [(2, pytest.approx(result["mae"]))]
    assert events["loss"] == [(2, pytest.approx(result["loss"]))]
    ((step, path),) = events["checkpoint_path"]
    assert (step, path.string_val[0].decode()) == (2, f"{trained.model_dir}/model.ckpt-2")
    assert "global_step" not in events
    text = "\n".join(logged)
    for line in (
        "Starting evaluation at ",
        f"Restoring parameters from {trained.model_dir}/model.ckpt-2",
        "Evaluation [1/1]",
        "Finished evaluation at ",
        "Saving dict for global step 2: global_step = 2, loss = ",
    ):
        assert line in text


def test_arrays_and_summaries_are_written_and_the_rest_is_named(
    untrained: Make, read_events: Make, tmp_path: Path, logged: list[str]
) -> None:
    picture = v1.Summary()
    picture.value.add(tag="mine", simple_value=3.0)

    def spec(features: Any, mode: str) -> dict[str, Any]:
        values = {
            "array": tf.constant([1.0, 2.0]),
            "picture": tf.constant(picture.SerializeToString()),
            "text": tf.constant(["a", "b"]),
        }
        return {"eval_metric_ops": {name: (value, tf.no_op()) for name, value in values.items()}}

    untrained(spec).evaluate(_four_numbers, steps=1)
    events = read_events(tmp_path / "eval")
    assert tf.make_ndarray(events["array"][0][1]).tolist() == [1.0, 2.0]
    assert events["picture/0"] == [(0, 3.0)]
    assert "text" not in events
    assert any(line.startswith("Skipping summary for text") for line in logged)


class Watch(v1.train.SessionRunHook):  # type: ignore[misc]
    """Keeps the session that it was created in."""

    has_seen_end = False

    def after_create_session(self, session: Any, coord: Any) -> None:
        self.session = session

    def end(self, session: Any) -> None:
        self.has_seen_end = True

    def is_open(self) -> bool:
        try:
            self.session.run([])
        except RuntimeError as error:
            assert "closed" in str(error)
            return False
        return True


# predict.


def _doubled(features: Any, mode: str) -> dict[str, Any]:
    return {"predictions": {"doubled": features * 2.0, "same": features}}


NUMBERS = (1.0, 2.0, 3.0, 4.0)


@pytest.mark.parametrize(
    ("spec", "arguments", "expected"),
    [
        (_doubled, {}, [{"doubled": 2 * n, "same": n} for n in NUMBERS]),
        (lambda features, mode: {"predictions": features * 2.0}, {}, [2.0, 4.0, 6.0, 8.0]),
        (_doubled, {"predict_keys": ["same", "absent"]}, [{"same": n} for n in NUMBERS]),
        (
            lambda features, mode: {"predictions": {"same": features, "am": features}},
            {"predict_keys": "same"},
            [{"same": n} for n in NUMBERS],
        ),
    ],
    ids=["a dict", "a tensor", "predict_keys", "one key"],
)
def test_each_example_gives_a_dict_or_a_row_in_order(
    untrained: Make, spec: Any, arguments: dict[str, Any], expected: list[Any]
) -> None:
    assert list(untrained(spec).predict(_four_numbers, **arguments)) == expected


def test_whole_batches_come_on_demand(untrained: Make) -> None:
    batches = list(untrained(_doubled).predict(_four_numbers, yield_single_examples=False))
    assert [batch["same"].tolist() for batch in batches] == [[1.0, 2.0], [3.0, 4.0]]


def test_predict_keys_that_choose_nothing_are_refused(untrained: Make) -> None:
    with pytest.raises(ValueError, match=r"at least one output from \['doubled', 'same'\], .*'x'"):
        next(untrained(_doubled).predict(_four_numbers, predict_keys=["x"]))
    alone = untrained(lambda features, mode: {"predictions": features})
    with pytest.raises(ValueError, match="not valid in case of non-dict predictions"):
        next(alone.predict(_four_numbers, predict_keys=["x"]))


def test_predictions_of_unequal_lengths_are_refused_unless_batches_are_asked(
    untrained: Make,
) -> None:
    def spec(features: Any, mode: str) -> dict[str, Any]:
        return {"predictions": {"two": features, "one": tf.constant([1.0])}}

    with pytest.raises(ValueError, match="Batch length of predictions should be same"):
        next(untrained(spec).predict(_four_numbers))
    batch = next(untrained(spec).predict(_four_numbers, yield_single_examples=False))
    assert {name: len(value) for name, value in batch.items()} == {"two": 2, "one": 1}


def test_the_newest_checkpoint_predicts_unless_another_is_named_and_labels_are_dropped(
    trained: tfe.Estimator, numbers: Make
) -> None:
    rows = list(trained.predict(numbers(batches=2), predict_keys=["output"]))
    kernel = trained.get_variable_value("kernel")
    bias = trained.get_variable_value("bias")
    x = np.random.RandomState(0).randn(64, 2)[:8]
    assert len(rows) == 8
    np.testing.assert_allclose([row["output"] for row in rows], x @ kernel + bias, rtol=1e-5)
    first = f"{trained.model_dir}/model.ckpt-0"
    row = next(trained.predict(numbers(), checkpoint_path=first))
    np.testing.assert_allclose(row["output"], np.full(3, x[0].sum()), rtol=1e-5)


@pytest.mark.parametrize("number", [1, 2, 3, 4, 9])
def test_the_number_of_predictions_can_be_limited(untrained: Make, number: int) -> None:
    watch, estimator = Watch(), untrained(_doubled)
    values = list(estimator.predict(_four_numbers, hooks=[watch], num_predictions=number))
    assert [value["doubled"] for value in values] == [2.0, 4.0, 6.0, 8.0][:number]
    assert watch.has_seen_end
    batches = estimator.predict(_four_numbers, yield_single_examples=False, num_predictions=1)
    assert len(list(batches)) == 1


def test_no_predictions_are_refused(untrained: Make) -> None:
    with pytest.raises(ValueError, match="num_predictions must be at least 1, got 0"):
        next(untrained(_doubled).predict(_four_numbers, num_predictions=0))


def test_a_subclass_makes_the_step_counter_that_predict_finds(tmp_path: Path) -> None:
    class Mine(tfe.Estimator):
        def _create_and_assert_global_step(self, graph: tf.Graph) -> Any:
            return v1.train.create_global_step(graph).assign(5)

    def model_fn(features: Any, mode: str) -> tfe.EstimatorSpec:
        names = [op.type for op in v1.get_default_graph().get_operations()]
        assert names.count("AssignVariableOp") == 2  # Its initializer, and ours.
        return tfe.EstimatorSpec(mode, predictions=features)

    assert len(list(Mine(model_fn, tmp_path).predict(_four_numbers))) == 4


def test_an_untrained_model_predicts_and_says_so(untrained: Make, logged: list[str]) -> None:
    assert next(untrained(_doubled).predict(_four_numbers))["doubled"] == 2.0
    assert any("running initialization to predict" in line for line in logged)


def test_nothing_happens_before_the_first_value_is_asked_for(untrained: Make) -> None:
    def no_input() -> Any:
        raise AssertionError("not called here")

    predictions = untrained(_doubled).predict(no_input, hooks=["wrong"])
    assert isinstance(predictions, Iterator)
    with pytest.raises(TypeError, match="Hooks must be a SessionRunHook"):
        next(predictions)


def test_input_without_an_end_is_told_so(untrained: Make, logged: list[str]) -> None:
    predictions = untrained(_doubled).predict(lambda: tf.constant([1.0]))
    assert [next(predictions)["same"] for _ in range(3)] == [1.0, 1.0, 1.0]
    predictions.close()
    assert any("predict yields forever" in line for line in logged)


# A suspended generator.


def test_a_generator_that_is_closed_early_closes_its_session(untrained: Make) -> None:
    watch = Watch()
    predictions = untrained(_doubled).predict(_four_numbers, hooks=[watch])
    next(predictions)
    assert watch.is_open()
    predictions.close()
    assert not watch.is_open() and not watch.has_seen_end


def test_a_generator_that_has_ended_has_closed_its_session(untrained: Make) -> None:
    watch = Watch()
    list(untrained(_doubled).predict(_four_numbers, hooks=[watch]))
    assert watch.has_seen_end and not watch.is_open()


def test_a_failing_model_closes_its_session_and_says_why(untrained: Make) -> None:
    def spec(features: Any, mode: str) -> dict[str, Any]:
        return {"predictions": tf.debugging.check_numerics(1.0 / (features - 3.0), "not finite")}

    watch = Watch()
    predictions = untrained(spec).predict(_four_numbers, hooks=[watch])
    assert [next(predictions), next(predictions)] == [-0.5, -1.0]
    with pytest.raises(tf.errors.InvalidArgumentError, match="not finite"):
        next(predictions)
    assert not watch.is_open()


def test_the_caller_stays_eager_while_a_generator_is_suspended(untrained: Make) -> None:
    predictions = untrained(_doubled).predict(_four_numbers)
    for number in (1.0, 2.0, 3.0):
        assert next(predictions)["same"] == number
        assert tf.executing_eagerly()
        assert float(tf.constant(1.0) + 1.0) == 2.0
    predictions.close()
    assert tf.executing_eagerly()


def test_two_generators_can_be_read_in_turn(untrained: Make) -> None:
    one = untrained(_doubled).predict(_four_numbers)
    other = untrained(_doubled).predict(_four_numbers)
    pairs = [(a["same"], b["doubled"]) for a, b in zip(one, other, strict=True)]
    assert pairs == [(n, 2 * n) for n in (1.0, 2.0, 3.0, 4.0)]
    assert tf.executing_eagerly()


def test_training_works_while_a_generator_is_suspended(
    trained: tfe.Estimator, numbers: Make
) -> None:
    predictions = trained.predict(numbers(batches=1))
    before = next(predictions)["output"]
    trained.train(numbers(), steps=1)
    assert len(list(predictions)) == 3  # The rest of the batch.
    assert np.any(next(trained.predict(numbers(batches=1)))["output"] != before)
