"""Deep networks. Numbers without a formula were computed with tf.estimator 2.15."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tfdist.estimator as tfe

INPUT = "dnn/input_from_feature_columns/input_layer/"
DEEP = ["age", "size", "ages", "embedded", "embedded_cross", "one_hot"]
DEEP_SHAPES = {
    "dnn/hiddenlayer_0/kernel": [15, 3],
    "dnn/hiddenlayer_0/bias": [3],
    "dnn/hiddenlayer_1/kernel": [3, 2],
    "dnn/hiddenlayer_1/bias": [2],
    "dnn/logits/kernel": [2, 3],
    "dnn/logits/bias": [3],
    INPUT + "word_embedding/embedding_weights": [4, 2],
    INPUT + "id_X_word_embedding/embedding_weights": [6, 2],
}


def test_a_classifier_over_every_kind_of_column_trains_as_tf_estimator_does(
    columns: Any, batches: Any, save: Any, losses: Any
) -> None:
    estimator = tfe.DNNClassifier(
        [3, 2],
        [columns[name] for name in DEEP],
        n_classes=3,
        optimizer=lambda: tf_keras.optimizers.legacy.Adagrad(0.5),
        warm_start_from=save(DEEP_SHAPES),
    )
    found = losses(estimator, batches("three"))
    np.testing.assert_allclose(found, [0.93004, 0.9423, 0.740314, 0.809538], atol=2e-6)
    np.testing.assert_allclose(
        estimator.get_variable_value(INPUT + "word_embedding/embedding_weights").ravel(),
        [-0.387782, 0.566108, 1.014157, 0.503661, -0.461727, -0.974453, -0.629888, 0.313229],
        atol=2e-6,
    )
    metrics = estimator.evaluate(batches("three", repeat=False))
    expected = {"accuracy": 0.666667, "average_loss": 0.714701, "loss": 0.714701, "global_step": 4}
    assert metrics == pytest.approx(expected, abs=2e-6)
    first = next(estimator.predict(batches(None, repeat=False)))
    assert first["probabilities"] == pytest.approx([0.384828, 0.542729, 0.072443], abs=2e-6)
    assert first["class_ids"] == [1]


def test_the_default_optimizer_is_adagrad_with_a_rate_of_one_thousandth(
    columns: Any, batches: Any, save: Any, losses: Any
) -> None:
    start = save(DEEP_SHAPES)
    estimator = tfe.DNNClassifier(
        [3, 2], [columns[name] for name in DEEP], n_classes=3, warm_start_from=start
    )
    found = losses(estimator, batches("three"))
    np.testing.assert_allclose(found, [0.93004, 1.169578, 1.166711, 0.929155], atol=2e-6)
    adagrad = "training/Adagrad/"
    slots = {f"{adagrad}{name}/accumulator" for name in DEEP_SHAPES}
    settings = {adagrad + "decay", adagrad + "learning_rate"}
    names = set(estimator.get_variable_names())
    assert names == {"global_step", *DEEP_SHAPES, *slots, *settings}


def test_a_checkpoint_of_tf_estimator_is_trained_on(
    columns: Any, batches: Any, save: Any, shapes: Any, losses: Any, tmp_path: Path
) -> None:
    start = save(shapes["dnn"])
    values = {name: tf.train.load_variable(start, name) for name in shapes["dnn"]}
    slots = {f"training/Adagrad/{name}/accumulator": np.abs(x) + 0.5 for name, x in values.items()}
    settings = {
        "training/Adagrad/decay": np.float32(0),
        "training/Adagrad/learning_rate": np.float32(0.2),
    }
    save({**values, **slots, **settings})
    estimator = tfe.DNNRegressor([3], [columns["age"]], model_dir=tmp_path)
    found = losses(estimator, batches("number"), steps=2)
    np.testing.assert_allclose(found, [0.833553, 0.559662], atol=2e-6)
    assert estimator.get_variable_value("global_step") == 9
    slot = estimator.get_variable_value("training/Adagrad/dnn/hiddenlayer_0/bias/accumulator")
    np.testing.assert_allclose(slot, [0.513448, 1.34622, 1.405578], atol=2e-6)


def test_batch_norm_trains_as_tf_estimators_does(
    columns: Any, batches: Any, save: Any, shapes: Any, losses: Any
) -> None:
    norm = "dnn/hiddenlayer_0/batchnorm_0/"
    shapes = {**shapes["dnn"], norm + "gamma": [3], norm + "beta": [3]}
    estimator = tfe.DNNRegressor(
        [3],
        [columns["age"]],
        activation_fn=tf.nn.tanh,
        batch_norm=True,
        optimizer="SGD",
        warm_start_from=save(shapes),
    )
    found = losses(estimator, batches("number"))
    np.testing.assert_allclose(found, [1.566539, 2.233995, 0.395262, 0.630473], atol=5e-6)
    mean = estimator.get_variable_value(norm + "moving_mean")
    np.testing.assert_allclose(mean, [-0.000471, -0.002783, -0.002296], atol=2e-6)
    metrics = estimator.evaluate(batches("number", repeat=False))
    assert metrics["loss"] == pytest.approx(0.519802, abs=2e-6)


def test_dropout_drops_while_training_only(
    columns: Any, batches: Any, read_events: Any, tmp_path: Path
) -> None:
    estimator = tfe.DNNRegressor(
        [200],
        [columns["age"]],
        tmp_path,
        activation_fn=tf.nn.softplus,
        dropout=0.5,
        config=tfe.RunConfig(tf_random_seed=1),
    )
    estimator.train(batches("number"), steps=1)
    tag = "dnn/hiddenlayer_0/fraction_of_zero_values"
    assert 0.4 < read_events(tmp_path)[tag][0][1] < 0.6
    once, again = (
        [p["predictions"] for p in estimator.predict(batches(None, repeat=False))] for _ in range(2)
    )
    assert np.array_equal(once, again)


def test_every_layer_is_summarized(
    columns: Any, batches: Any, read_events: Any, tmp_path: Path
) -> None:
    estimator = tfe.DNNRegressor([3, 2], [columns["age"]], tmp_path)
    estimator.train(batches("number"), steps=1)
    layers = ("hiddenlayer_0", "hiddenlayer_1", "logits")
    kinds = ("activation", "fraction_of_zero_values")
    tags = {tag for tag in read_events(tmp_path) if tag.startswith("dnn")}
    assert tags == {f"dnn/{layer}/{kind}" for layer in layers for kind in kinds}


def test_a_scope_of_the_input_does_not_change_the_variables_names(
    columns: Any, batches: Any, shapes: Any
) -> None:
    def input_fn() -> tf.data.Dataset:
        with tf.name_scope("dnn"):
            tf.constant(1)
        return batches("number")()

    estimator = tfe.DNNRegressor([3], [columns["age"]]).train(input_fn, steps=1)
    assert set(shapes["dnn"]) <= set(estimator.get_variable_names())


def test_an_embedding_starts_from_one_of_an_older_vocabulary(
    batches: Any, save: Any, tmp_path: Path
) -> None:
    old, new = tmp_path / "old.txt", tmp_path / "new.txt"
    old.write_text("a\nb\n")
    new.write_text("b\nc\na\n")
    name = INPUT + "word_embedding/embedding_weights"
    path = save({name: np.float32([[1, 1], [2, 2]])})
    word = tf.feature_column.categorical_column_with_vocabulary_file("word", str(new), 3)
    start = tfe.WarmStartSettings(
        path,
        vars_to_warm_start=None,
        var_name_to_vocab_info={
            name: tfe.VocabInfo(str(new), 3, 0, str(old), 2, tf.zeros_initializer())
        },
    )
    estimator = tfe.DNNRegressor(
        [2],
        [tf.feature_column.embedding_column(word, 2)],
        optimizer=lambda: tf_keras.optimizers.legacy.SGD(0.0),
        warm_start_from=start,
    )
    estimator.train(batches("number"), steps=1)
    assert estimator.get_variable_value(name).tolist() == [[2, 2], [0, 0], [1, 1]]


def test_shared_embeddings_keep_their_first_values_and_that_is_said(
    columns: Any, batches: Any, logged: list[str]
) -> None:
    # tf.estimator does not train them either: they belong to no layer.
    with tf.Graph().as_default():
        shared = tf.feature_column.shared_embeddings(
            [columns["word"]], 2, initializer=tf.ones_initializer()
        )
    estimator = tfe.DNNRegressor([2], [*shared, columns["age"]], optimizer="SGD")
    estimator.train(batches("number"), steps=2)
    name = "word_shared_embedding"
    np.testing.assert_array_equal(estimator.get_variable_value(name), np.ones([4, 2]))
    assert any("word_shared_embedding" in line and "not trained" in line for line in logged)


def test_a_head_of_the_users_is_trained(columns: Any, batches: Any) -> None:
    estimator = tfe.DNNEstimator(tfe.MultiClassHead(3, name="mine"), [3], [columns["age"]])
    estimator.train(batches("three"), steps=2)
    metrics = estimator.evaluate(batches("three", repeat=False))
    assert set(metrics) == {"accuracy/mine", "average_loss/mine", "loss", "global_step"}


def test_it_is_exported_for_serving(
    columns: Any, batches: Any, features: Any, tmp_path: Path
) -> None:
    chosen = [columns["age"], columns["embedded"]]
    estimator = tfe.DNNClassifier([3], chosen).train(batches("two"), steps=2)
    spec = tf.feature_column.make_parse_example_spec(chosen)
    receiver = tfe.export.build_parsing_serving_input_receiver_fn(spec)
    folder = estimator.export_saved_model(str(tmp_path), receiver)
    with tf.Graph().as_default():
        path = folder.decode() if isinstance(folder, bytes) else folder
    signatures = tf.saved_model.load(path).signatures
    assert {"serving_default", "classification", "regression", "predict"} <= set(signatures)
    example = tf.train.Example()
    example.features.feature["age"].float_list.value.append(features["age"][0, 0])
    example.features.feature["word"].bytes_list.value.append(b"a")
    served = signatures["predict"](examples=tf.constant([example.SerializeToString()]))
    predicted = next(estimator.predict(batches(None, repeat=False)))
    np.testing.assert_allclose(served["logits"][0], predicted["logits"], rtol=1e-5)
