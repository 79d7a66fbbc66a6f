"""`numpy_input_fn` and `pandas_input_fn`: expected values are those of tf.estimator 2.15."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

import tfdist.estimator as tfe
from tfdist.estimator.inputs import numpy_input_fn, pandas_input_fn
from tfdist.estimator.inputs.feeding import row_numbers

Make = Callable[..., Any]


def _read(input_fn: Any, limit: int = 100) -> list[Any]:
    """Reads batches to the end as old programs do: threads started by hand, nothing initialised."""
    batches: list[Any] = []
    with tf.Graph().as_default(), v1.Session() as session:
        batch = input_fn()
        coordinator = v1.train.Coordinator()
        threads = v1.train.start_queue_runners(session, coordinator)
        try:
            while len(batches) < limit:
                batches.append(session.run(batch))
        except tf.errors.OutOfRangeError:
            pass
        coordinator.request_stop()
        coordinator.join(threads)
    return batches


def _lists(value: Any) -> Any:
    return tf.nest.map_structure(lambda array: array.tolist(), value)


# Which rows.


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((5, 2, 1, 0), [[0, 1], [2, 3], [4]]),
        ((5, 2, 2, 0), [[0, 1], [2, 3], [4, 0], [1, 2], [3, 4]]),
        ((5, 2, 1, 3), [[3, 4], [0, 1], [2]]),
        ((5, 2, 0, 0), []),
        ((2, 5, 3, 0), [[0, 1, 0, 1, 0], [1]]),
    ],
)
def test_rows_go_round_and_the_last_batch_may_be_smaller(
    arguments: tuple[int, int, int, int], expected: list[list[int]]
) -> None:
    assert [rows.tolist() for rows in row_numbers(*arguments)] == expected


# numpy.

A, B, Y = np.arange(5) * 1.0, np.arange(32, 37), np.arange(-5, 0)


def test_a_dict_of_arrays_gives_a_dict_of_tensors_and_labels() -> None:
    batches = _read(numpy_input_fn({"b": B, "a": A}, Y, batch_size=2, shuffle=False))
    assert [_lists(batch) for batch in batches] == [
        ({"a": [0.0, 1.0], "b": [32, 33]}, [-5, -4]),
        ({"a": [2.0, 3.0], "b": [34, 35]}, [-3, -2]),
        ({"a": [4.0], "b": [36]}, [-1]),
    ]
    assert batches[0][0]["a"].dtype == np.float64


def test_an_array_alone_gives_a_tensor_and_none_as_num_epochs_no_end() -> None:
    batches = _read(numpy_input_fn(A, batch_size=2, num_epochs=None, shuffle=False), limit=4)
    assert [batch.tolist() for batch in batches] == [[0, 1], [2, 3], [4, 0], [1, 2]]


def test_labels_may_be_a_dict() -> None:
    input_fn = numpy_input_fn({"a": A}, {"z": B, "y": Y}, batch_size=5, shuffle=False)
    ((features, labels),) = _read(input_fn)
    assert list(labels) == ["y", "z"]
    assert (features["a"].tolist(), labels["z"].tolist()) == (A.tolist(), B.tolist())


def test_arrays_may_have_any_shape_and_type() -> None:
    x = {
        "matrix": np.arange(6, dtype=np.float32).reshape(3, 2),
        "text": np.array(["x", "yy", "é"]),
        "bytes": np.array([b"x", "y", "z"], object),
        "flag": np.array([True, False, True]),
    }
    (batch,) = _read(numpy_input_fn(x, shuffle=False))
    assert batch["matrix"].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert batch["text"].tolist() == [b"x", b"yy", "é".encode()]
    assert batch["bytes"].tolist() == [b"x", b"y", b"z"]
    assert batch["flag"].tolist() == [True, False, True]


def test_shuffled_rows_are_all_there_once_an_epoch_in_another_order() -> None:
    x = np.arange(200)
    input_fn = numpy_input_fn({"x": x}, x, batch_size=50, shuffle=True, queue_capacity=400)
    batches = _read(input_fn)
    features = np.concatenate([features["x"] for features, _ in batches])
    labels = np.concatenate([labels for _, labels in batches])
    assert sorted(features) == x.tolist()
    assert features.tolist() != x.tolist()
    assert features.tolist() == labels.tolist()


def test_each_of_several_threads_reads_everything_and_that_is_said(logged: list[str]) -> None:
    batches = _read(numpy_input_fn(A, batch_size=5, shuffle=False, num_threads=2))
    assert sorted(np.concatenate(batches)) == sorted([*A, *A])
    assert any("every row comes 2 times" in line for line in logged)
    assert any("come mixed" in line for line in logged)


def test_how_full_the_queue_is_has_tf_estimators_tag() -> None:
    with tf.Graph().as_default():
        numpy_input_fn(A, shuffle=False)()
        numpy_input_fn(A, shuffle=True, queue_capacity=20)()
        tags = [tensor.op.inputs[0] for tensor in v1.get_collection(v1.GraphKeys.SUMMARIES)]
        assert [tf.get_static_value(tag).item().decode() for tag in tags] == [
            "enqueue_input/queue/enqueue_input/fifo_queuefraction_over_0_of_1000_full",
            "enqueue_input_1/queue/enqueue_input_1/random_shuffle_queuefraction_over_5_of_15_full",
        ]


def test_shuffle_must_be_decided() -> None:
    for make, x in ((numpy_input_fn, A), (pandas_input_fn, pd.DataFrame({"a": A}))):
        with pytest.raises(ValueError, match="shuffle must be provided and explicitly set as bool"):
            make(x)


@pytest.mark.parametrize(
    ("x", "y", "error", "words"),
    [
        ([1.0], None, TypeError, "x must be a dict or array; got list"),
        ({}, None, ValueError, "x cannot be an empty"),
        (np.array([]), None, ValueError, "x cannot be an empty"),
        (A, {}, ValueError, "y cannot be empty"),
        ({"a": A, "b": B}, {"b": B, "a": A}, ValueError, "2 duplicate keys are found in both"),
        ({"a": A, "b": B[:2]}, None, ValueError, "Length of tensors in x and y is mismatched"),
        (A, Y[:2], ValueError, r"Shapes in y: \[\(2,\)\]"),
    ],
)
def test_bad_arrays_are_refused_when_the_input_is_built(
    x: Any, y: Any, error: type[Exception], words: str
) -> None:
    input_fn = numpy_input_fn(x, y, shuffle=False)
    with tf.Graph().as_default(), pytest.raises(error, match=words):
        input_fn()


# pandas.

INDEX = range(100, 105)


@pytest.fixture
def frame() -> pd.DataFrame:
    return pd.DataFrame({"a": A, "text": list("vwxyz")}, index=INDEX)


def test_a_frame_gives_a_dict_of_its_columns(frame: pd.DataFrame) -> None:
    batches = _read(pandas_input_fn(frame, batch_size=3, shuffle=False))
    assert [_lists(batch) for batch in batches] == [
        {"a": [0.0, 1.0, 2.0], "text": [b"v", b"w", b"x"]},
        {"a": [3.0, 4.0], "text": [b"y", b"z"]},
    ]


def test_a_series_gives_labels(frame: pd.DataFrame) -> None:
    input_fn = pandas_input_fn(frame, pd.Series(Y, index=INDEX), batch_size=4, shuffle=False)
    batches = _read(input_fn)
    assert [labels.tolist() for _, labels in batches] == [[-5, -4, -3, -2], [-1]]
    assert [sorted(features) for features, _ in batches] == [["a", "text"]] * 2


def test_a_frame_of_labels_gives_a_dict_and_may_share_names(frame: pd.DataFrame) -> None:
    labels = pd.DataFrame({"a": B, "k": Y}, index=INDEX)
    ((features, got),) = _read(pandas_input_fn(frame, labels, shuffle=False))
    assert (features["a"].tolist(), got["a"].tolist()) == (A.tolist(), B.tolist())
    assert got["k"].tolist() == Y.tolist()


def test_the_frame_is_copied(frame: pd.DataFrame) -> None:
    input_fn = pandas_input_fn(frame, shuffle=False, queue_capacity=None)
    frame["a"] = 7.0
    assert _read(input_fn)[0]["a"].tolist() == A.tolist()


def test_bad_frames_are_refused(frame: pd.DataFrame) -> None:
    y = pd.Series(Y)
    with pytest.raises(ValueError, match="Index for x and y are mismatched"):
        pandas_input_fn(frame, y, shuffle=False)
    with pytest.raises(ValueError, match="Cannot use name a for target column"):
        pandas_input_fn(frame, y, shuffle=False, target_column="a")
    with pytest.raises(TypeError, match="target_column must be a string type"):
        pandas_input_fn(frame, y, shuffle=False, target_column=1)  # type: ignore[arg-type]


def test_no_rows_are_no_batches_and_cannot_be_shuffled_or_repeated(frame: pd.DataFrame) -> None:
    assert _read(pandas_input_fn(frame[:0], shuffle=False)) == []
    for options in ({"shuffle": True}, {"shuffle": False, "num_epochs": None}):
        for input_fn in (
            pandas_input_fn(frame[:0], **options),  # type: ignore[arg-type]
            numpy_input_fn({"a": A[:0]}, **options),  # type: ignore[arg-type]
        ):
            with tf.Graph().as_default(), pytest.raises(ValueError, match="x has no rows"):
                input_fn()


def test_without_pandas_one_line_says_so(
    frame: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(TypeError, match=r"without pandas installed\. Run: pip install pandas"):
        pandas_input_fn(frame, shuffle=False)


# In an Estimator.


def test_an_estimator_trains_evaluates_and_predicts_with_them(
    dense: Make, tmp_path: Path, logged: list[str]
) -> None:
    x, y = np.ones([10, 2], np.float32), np.zeros([10, 3], np.float32)
    config = tfe.RunConfig(save_summary_steps=None, log_step_count_steps=None)
    estimator = tfe.Estimator(dense(), tmp_path, config)
    estimator.train(numpy_input_fn({"x": x}, y, batch_size=4, num_epochs=2, shuffle=True))
    assert estimator.get_variable_value("global_step") == 5
    metrics = estimator.evaluate(numpy_input_fn({"x": x}, y, batch_size=4, shuffle=False))
    assert metrics["mae"] < 2.0
    logged.clear()
    predictions = list(estimator.predict(numpy_input_fn({"x": x}, batch_size=4, shuffle=False)))
    assert len(predictions) == 10
    assert not any("forever" in line for line in logged)
