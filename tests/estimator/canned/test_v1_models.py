"""Canned estimators of tf.compat.v1.estimator. Numbers were computed with tf.estimator 2.15."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

import tfdist.estimator as tfe
from tfdist.estimator import v1 as tfe1


def test_a_dnn_adds_the_weighed_losses_of_a_batch(
    columns: Any, batches: Any, save: Any, shapes: Any, losses: Any
) -> None:
    start = save(shapes["dnn"])
    estimator = tfe1.DNNClassifier(
        [3], [columns["age"]], weight_column="weight", warm_start_from=start
    )
    found = losses(estimator, batches("two"))
    np.testing.assert_allclose(found, [3.095568, 2.482024, 3.525194, 2.969777], atol=3e-6)
    # The slot's name is that of old checkpoints: the optimizer works inside the scope "dnn".
    slot = estimator.get_variable_value("dnn/hiddenlayer_0/bias/t_0/Adagrad")
    np.testing.assert_allclose(slot, [0.405905, 0.1, 0.1], atol=2e-6)
    metrics = estimator.evaluate(batches("two", repeat=False))
    expected = {
        "accuracy": 0.416667, "accuracy_baseline": 0.666667, "auc": 0.5625,
        "auc_precision_recall": 0.518353, "average_loss": 0.730663, "label/mean": 0.333333,
        "loss": 2.922653, "precision": 0.285714, "prediction/mean": 0.533079, "recall": 0.5,
        "global_step": 4,
    }  # fmt: skip
    assert metrics == pytest.approx(expected, abs=3e-6)


def test_a_linear_model_trains_as_tf_estimator_does(
    columns: Any, batches: Any, save: Any, shapes: Any, losses: Any
) -> None:
    start = save(shapes["linear"])
    estimator = tfe1.LinearRegressor([columns["word"]], warm_start_from=start)
    found = losses(estimator, batches("number"))
    np.testing.assert_allclose(found, [5.166353, 4.798194, 3.025455, 1.79633], atol=3e-6)
    slot = estimator.get_variable_value("linear/linear_model/bias_weights/part_0/Ftrl")
    np.testing.assert_allclose(slot, [89.404587], rtol=1e-6)


def test_both_together_train_as_tf_estimators_do(
    columns: Any, batches: Any, save: Any, shapes: Any, losses: Any
) -> None:
    estimator = tfe1.DNNLinearCombinedRegressor(
        linear_feature_columns=[columns["word"]],
        dnn_feature_columns=[columns["age"]],
        dnn_hidden_units=[3],
        warm_start_from=save(shapes["both"]),
    )
    found = losses(estimator, batches("number"))
    np.testing.assert_allclose(found, [12.040468, 7.079002, 11.783298, 11.107947], atol=1e-5)
    assert set(estimator.get_variable_names()) == {
        "global_step",
        *shapes["both"],
        *(f"{name}/Adagrad" for name in shapes["dnn"]),
        *(f"{name}/{slot}" for name in shapes["linear"] for slot in ("Ftrl", "Ftrl_1")),
    }
    assert estimator.get_variable_value("global_step") == 4


def test_a_baseline_trains_as_tf_estimator_does(batches: Any, losses: Any) -> None:
    estimator = tfe1.BaselineRegressor()
    assert isinstance(estimator, tfe1.Estimator) and hasattr(estimator, "export_savedmodel")
    found = losses(estimator, batches("number", "age"))
    np.testing.assert_allclose(found, [1.477645, 3.022868, 1.558434, 1.481261], atol=3e-6)
    names = {"baseline/bias", "baseline/bias/Ftrl", "baseline/bias/Ftrl_1", "global_step"}
    assert set(estimator.get_variable_names()) == names


def test_batch_norm_moves_its_averages_and_shared_embeddings_learn(
    columns: Any, batches: Any
) -> None:
    with tf.Graph().as_default():
        shared = tf.feature_column.shared_embeddings(
            [columns["word"]], 2, initializer=tf.ones_initializer()
        )
    estimator = tfe1.DNNRegressor(
        [4], [*shared, columns["age"]], batch_norm=True, activation_fn=tf.nn.tanh, optimizer="SGD"
    )
    estimator.train(batches("number"), steps=2)
    moved = estimator.get_variable_value("dnn/hiddenlayer_0/batchnorm_0/moving_variance")
    assert np.all(moved != 1.0)
    embeddings = [n for n in estimator.get_variable_names() if "word_shared_embedding" in n]
    assert np.any(estimator.get_variable_value(embeddings[0]) != 1.0)


def test_the_mean_loss_is_summarized_beside_the_sum(
    columns: Any, batches: Any, read_events: Any, tmp_path: Path
) -> None:
    config = tfe.RunConfig(save_summary_steps=1)
    estimator = tfe1.LinearClassifier([columns["age"]], tmp_path, n_classes=3, config=config)
    estimator.train(batches("three"), steps=1)
    events = read_events(tmp_path)
    assert events["loss"][0][1] == pytest.approx(4 * np.log(3))
    assert events["average_loss"][0][1] == pytest.approx(np.log(3))
    assert {"linear/bias", "linear/fraction_of_zero_weights"} <= set(events)


def test_each_number_of_an_example_may_have_a_weight(
    columns: Any, features: Any, labels: Any, read_events: Any, tmp_path: Path
) -> None:
    two = np.concatenate([labels["number"], -2 * labels["number"]], axis=1)
    weights = np.concatenate([features["weight"], 3 * features["weight"]], axis=1)
    batch = ({**features, "weight": weights}, two)
    estimator = tfe1.LinearRegressor(
        [columns["age"]], tmp_path, label_dimension=2, weight_column="weight"
    )
    estimator.train(lambda: tf.data.Dataset.from_tensors(batch), steps=1)
    # All predictions are zero at first.
    expected = np.sum(weights * two**2) / np.sum(weights)
    assert read_events(tmp_path)["average_loss"][0][1] == pytest.approx(expected, rel=1e-5)


def test_the_bias_is_not_among_the_weights_that_are_summarized(
    columns: Any, batches: Any, read_events: Any, tmp_path: Path
) -> None:
    estimator = tfe1.LinearRegressor(
        [columns["age"], columns["word"]],
        tmp_path,
        config=tfe.RunConfig(save_summary_steps=1),
        partitioner=v1.variable_axis_size_partitioner(8),  # Two words in each part.
    )
    estimator.train(batches("number"), steps=2)
    first, second = [value for _, value in read_events(tmp_path)["linear/fraction_of_zero_weights"]]
    # A summary may be read before or after the update of its step. Of one age's and four words'
    # weights that of "a" stays zero in the first step: its label is zero. The bias would make 1/6.
    assert first == pytest.approx(1.0) or first == pytest.approx(0.2)
    assert second == pytest.approx(0.2) or second == 0.0


def test_columns_of_tensorflow_1_are_taken(columns: Any, batches: Any) -> None:
    with tf.Graph().as_default():
        shared = v1.feature_column.shared_embedding_columns([columns["word"]], 2)
    for estimator in (tfe1.DNNRegressor([2], shared), tfe1.LinearRegressor(shared)):
        estimator.train(batches("number"), steps=1)
        name = next(n for n in estimator.get_variable_names() if n.endswith("embedding_weights"))
        assert estimator.get_variable_value(name).shape == (4, 2)


def test_the_loss_may_be_a_mean(columns: Any, batches: Any, losses: Any) -> None:
    kinds = v1.losses.Reduction
    for reduction in (kinds.MEAN, kinds.SUM_OVER_BATCH_SIZE):
        estimator = tfe1.LinearClassifier([columns["age"]], loss_reduction=reduction)
        assert losses(estimator, batches("two"), 1) == pytest.approx([np.log(2)])


@pytest.mark.parametrize("reduction", ["sum", "none", v1.losses.Reduction.MEAN])
def test_other_reductions_are_refused(columns: Any, reduction: str) -> None:
    with pytest.raises(ValueError, match="loss_reduction"):
        tfe1.LinearClassifier([columns["age"]], weight_column="weight", loss_reduction=reduction)


def test_logit_functions_can_be_built_alone(columns: Any, features: Any) -> None:
    experimental = tfe1.experimental
    with tf.Graph().as_default(), v1.Session() as session:
        deep = experimental.dnn_logit_fn_builder(
            2, [3], [columns["age"]], tf.nn.relu, None, None, False
        )(features, tfe.ModeKeys.PREDICT)
        wide = experimental.linear_logit_fn_builder(2, [columns["age"]])(features)
        session.run(v1.global_variables_initializer())
        assert session.run(deep).shape == (12, 2)
        assert not session.run(wide).any()
    with pytest.raises(ValueError, match="units must be an int"):
        experimental.dnn_logit_fn_builder("2", [3], [columns["age"]], None, None, None, False)
