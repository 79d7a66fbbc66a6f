"""Twelve examples, columns over them, and weights to start from."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1
from brief_training import Fetch, loss_in

Arrays = dict[str, np.ndarray]
DNN = {
    "dnn/hiddenlayer_0/kernel": [1, 3],
    "dnn/hiddenlayer_0/bias": [3],
    "dnn/logits/kernel": [3, 1],
    "dnn/logits/bias": [1],
}
LINEAR = {"linear/linear_model/word/weights": [4, 1], "linear/linear_model/bias_weights": [1]}


@pytest.fixture
def features() -> Arrays:
    n = np.arange(12)
    words = np.array(["a", "b", "c", "other"])
    return {
        "age": np.sin(n).astype(np.float32).reshape(12, 1),
        "size": np.cos(np.arange(24)).astype(np.float32).reshape(12, 2),
        "word": words[n % 4].reshape(12, 1),
        "id": (n % 5).astype(np.int64).reshape(12, 1),
        "weight": ((n % 3 + 1) / 2).astype(np.float32).reshape(12, 1),
    }


@pytest.fixture
def labels() -> Arrays:
    n = np.arange(12)
    return {
        "two": (n % 3 == 1).astype(np.int64).reshape(12, 1),
        "three": (n * n % 3).astype(np.int64).reshape(12, 1),
        "number": np.sin(2 * n).astype(np.float32).reshape(12, 1),
    }


@pytest.fixture
def columns() -> dict[str, Any]:
    fc = tf.feature_column
    age = fc.numeric_column("age")
    word = fc.categorical_column_with_vocabulary_list("word", ["a", "b", "c"], num_oov_buckets=1)
    crossed = fc.crossed_column(["word", "id"], 6)
    return {
        "age": age,
        "size": fc.numeric_column("size", (2,)),
        "ages": fc.bucketized_column(age, [-0.5, 0.5]),
        "word": word,
        "id": fc.categorical_column_with_identity("id", 5),
        "hashed": fc.categorical_column_with_hash_bucket("word", 3),
        "crossed": crossed,
        "weighted": fc.weighted_categorical_column(word, "weight"),
        "embedded": fc.embedding_column(word, 2),
        "embedded_cross": fc.embedding_column(crossed, 2, combiner="sum"),
        "one_hot": fc.indicator_column(fc.categorical_column_with_identity("id", 5)),
    }


@pytest.fixture
def batches(features: Arrays, labels: Arrays) -> Callable[..., Callable[[], tf.data.Dataset]]:
    """Makes an input_fn: batches of four, without end while training; `keys` are its features.

    Labels are an array, a name among `labels`, or None.
    """

    def batches(label: np.ndarray | str | None, *keys: str, repeat: bool = True) -> Any:
        def input_fn() -> tf.data.Dataset:
            chosen = {key: features[key] for key in keys or features}
            own = labels[label] if isinstance(label, str) else label
            data = chosen if own is None else (chosen, own)
            dataset = tf.data.Dataset.from_tensor_slices(data).batch(4)
            return dataset.repeat() if repeat else dataset

        return input_fn

    return batches


@pytest.fixture
def shapes() -> dict[str, dict[str, list[int]]]:
    """The variables of a network of one layer over "age", and of a linear model over "word"."""
    return {"dnn": DNN, "linear": LINEAR, "both": {**DNN, **LINEAR}}


@pytest.fixture
def save(tmp_path: Path) -> Callable[[dict[str, Any]], str]:
    """Writes a checkpoint of these variables, and a global step of 7 if there is none in them.

    A variable is given by its value or, for sines, by its shape as a list.
    """

    def save(variables: dict[str, Any]) -> str:
        with tf.Graph().as_default(), v1.Session() as session:
            for name, value in {"global_step": np.int64(7), **variables}.items():
                if isinstance(value, list):
                    value = np.sin(len(name) + np.arange(np.prod(value))).reshape(value)
                    value = value.astype(np.float32)
                v1.get_variable(name, initializer=tf.constant(value))
            session.run(v1.global_variables_initializer())
            return str(v1.train.Saver().save(session, str(tmp_path / "model.ckpt"), global_step=7))

    return save


@pytest.fixture
def losses() -> Callable[..., list[float]]:
    """Trains an estimator and returns the loss of each step."""

    def losses(estimator: Any, input_fn: Any, steps: int = 4) -> list[float]:
        hook = Fetch(loss_in)
        estimator.train(input_fn, hooks=[hook], steps=steps)
        return hook.values

    return losses
