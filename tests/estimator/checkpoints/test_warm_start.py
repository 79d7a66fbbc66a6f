"""Starting from another model's variables."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

import tfdist.estimator as tfe
from tfdist.estimator import WarmStartSettings
from tfdist.estimator.export import build_raw_serving_input_receiver_fn

Make = Callable[..., Any]


@pytest.fixture(scope="module")
def older(dense: Make, numbers: Make, tmp_path_factory: pytest.TempPathFactory) -> tfe.Estimator:
    """A model trained for three steps."""
    folder = tmp_path_factory.mktemp("older")
    return tfe.Estimator(dense("adam"), folder).train(numbers(), steps=3)


@pytest.fixture
def start(dense: Make, numbers: Make, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Starts a new model and returns its variables before the first step."""

    def start(warm_start_from: Any, model_fn: Any = None) -> dict[str, Any]:
        estimator = tfe.Estimator(
            model_fn or dense("adam"), tmp_path / "new", warm_start_from=warm_start_from
        )
        estimator.train(numbers(batches=0))
        return {n: estimator.get_variable_value(n) for n in estimator.get_variable_names()}

    return start


def test_a_path_starts_the_trainable_variables_and_the_settings_are_logged(
    older: tfe.Estimator, start: Make, logged: list[str]
) -> None:
    new = start(older.model_dir)
    settings = f"WarmStartSettings(ckpt_to_initialize_from='{older.model_dir}'"
    phrase = f"Warm-starting with WarmStartSettings: {settings}"
    assert any(line.startswith(phrase) for line in logged)
    for name in ("kernel", "bias"):
        np.testing.assert_array_equal(new[name], older.get_variable_value(name))
        assert np.any(new[name] != (1.0 if name == "kernel" else 0.0))
    assert not np.any(new["kernel/Adam"])
    assert new["global_step"] == 0


def _export(older: tfe.Estimator, folder: Path) -> str:
    receiver_fn = build_raw_serving_input_receiver_fn({"x": tf.zeros([1, 2])})
    return older.export_saved_model(folder / "export", receiver_fn).decode()


@pytest.mark.parametrize(
    "path_of",
    [
        lambda older, _: older.latest_checkpoint(),
        lambda older, _: Path(older.latest_checkpoint()),
        _export,
    ],
    ids=["file", "path object", "SavedModel"],
)
def test_the_path_may_be_a_checkpoint_or_a_saved_model(
    older: tfe.Estimator, start: Make, tmp_path: Path, logged: list[str], path_of: Any
) -> None:
    new = start(path_of(older, tmp_path))
    np.testing.assert_array_equal(new["kernel"], older.get_variable_value("kernel"))
    assert ("Warm-starting from a SavedModel" in logged) == (path_of is _export)


@pytest.mark.parametrize(
    ("chosen", "started"),
    [("ker.*", ["kernel"]), (["kernel/Adam:0", "bias:0"], ["kernel/Adam", "bias"])],
)
def test_an_expression_or_a_list_of_them_chooses(
    older: tfe.Estimator, start: Make, chosen: Any, started: list[str]
) -> None:
    new = start(WarmStartSettings(older.model_dir, vars_to_warm_start=chosen))
    initial = {"kernel": np.ones([2, 3]), "bias": np.zeros(3), "kernel/Adam": np.zeros([2, 3])}
    for name, value in initial.items():
        expected = older.get_variable_value(name) if name in started else value
        np.testing.assert_array_equal(new[name], expected, err_msg=name)


def test_a_name_map_finds_renamed_variables(older: tfe.Estimator, start: Make, dense: Make) -> None:
    def renamed(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
        with v1.variable_scope("inner"):
            spec: tfe.EstimatorSpec = dense()(features, labels, mode)
            return spec

    names = {"inner/kernel": "kernel", "inner/bias": "bias"}
    new = start(WarmStartSettings(older.model_dir, var_name_to_prev_var_name=names), renamed)
    np.testing.assert_array_equal(new["inner/kernel"], older.get_variable_value("kernel"))
    np.testing.assert_array_equal(new["inner/bias"], older.get_variable_value("bias"))


def test_rows_follow_their_word_to_a_new_vocabulary(
    numbers: Make, start: Make, tmp_path: Path
) -> None:
    def embedding(words: int, name: str) -> Any:
        def model_fn(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
            values = np.arange(2.0 * words).reshape(words, 2) + 1
            rows = v1.get_variable(
                name, dtype=tf.float32, initializer=values.astype(np.float32), trainable=True
            )
            loss = tf.reduce_sum(rows) * tf.reduce_sum(features["x"])
            with tf.control_dependencies([loss]):
                step = v1.assign_add(v1.train.get_global_step(), 1)
            return tfe.EstimatorSpec(mode, loss=loss, train_op=step)

        return model_fn

    for name, words in (("old", ["red", "green", "blue"]), ("new", ["blue", "pink", "red"])):
        (tmp_path / f"{name}.txt").write_text("".join(f"{word}\n" for word in words))
    older = tfe.Estimator(embedding(3, "colours"), tmp_path / "older").train(numbers(), steps=1)
    vocabulary = tfe.VocabInfo(
        new_vocab=str(tmp_path / "new.txt"),
        new_vocab_size=3,
        num_oov_buckets=0,
        old_vocab=str(tmp_path / "old.txt"),
        backup_initializer=v1.zeros_initializer(),
    )
    settings = WarmStartSettings(older.model_dir, None, {"words": vocabulary}, {"words": "colours"})
    new = start(settings, embedding(3, "words"))
    np.testing.assert_array_equal(new["words"], [[5, 6], [0, 0], [1, 2]])


def test_a_checkpoint_of_ones_own_goes_first(
    older: tfe.Estimator, dense: Make, numbers: Make, tmp_path: Path
) -> None:
    own = tfe.Estimator(dense("adam"), tmp_path / "own").train(numbers(), steps=1)
    kernel = own.get_variable_value("kernel")
    again = tfe.Estimator(dense("adam"), own.model_dir, warm_start_from=older.model_dir)
    again.train(numbers(batches=0))
    np.testing.assert_array_equal(again.get_variable_value("kernel"), kernel)
    assert again.get_variable_value("global_step") == 1


def test_an_untrained_model_is_evaluated_and_predicts_with_a_warm_start(
    older: tfe.Estimator, dense: Make, numbers: Make, tmp_path: Path
) -> None:
    new = tfe.Estimator(dense("adam"), tmp_path / "new", warm_start_from=older.model_dir)
    ours, theirs = new.evaluate(numbers(), steps=2), older.evaluate(numbers(), steps=2)
    assert ours["loss"] == pytest.approx(theirs["loss"])
    assert (ours["global_step"], theirs["global_step"]) == (0, 3)
    one, other = next(new.predict(numbers())), next(older.predict(numbers()))
    np.testing.assert_allclose(one["output"], other["output"], rtol=1e-6)


def test_the_settings_have_tf_estimators_defaults() -> None:
    assert WarmStartSettings("path") == ("path", ".*", {}, {})


def test_settings_without_a_checkpoint_are_refused() -> None:
    with pytest.raises(ValueError, match="`ckpt_to_initialize_from` MUST be set"):
        WarmStartSettings("")


def test_what_is_neither_path_nor_settings_is_refused(dense: Make, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must be a string or a WarmStartSettings, instead got"):
        tfe.Estimator(dense(), tmp_path, warm_start_from=3)


@pytest.mark.parametrize("is_new", [True, False])
def test_an_average_begins_at_the_warm_value_in_any_order_of_initializers(
    older: tfe.Estimator, is_new: bool
) -> None:
    from tfdist.estimator.checkpoints.warm_start import apply_warm_start

    with tf.Graph().as_default(), v1.Session() as session:
        if not is_new:
            v1.disable_control_flow_v2()
        try:
            kernel = v1.get_variable("kernel", initializer=np.ones([2, 3], np.float32))
            average = v1.train.ExponentialMovingAverage(0.5)
            average.apply([kernel])
        finally:
            v1.enable_control_flow_v2()
        apply_warm_start(WarmStartSettings(older.model_dir))
        session.run(average.average(kernel).initializer)
        expected = older.get_variable_value("kernel")
        np.testing.assert_array_equal(session.run(average.average(kernel)), expected)
        assert np.any(expected != 1)
