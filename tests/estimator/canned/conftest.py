"""Twelve examples, columns over them, and weights to start from."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

Arrays = dict[str, np.ndarray]


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
def batches(features: Arrays) -> Callable[..., Callable[[], tf.data.Dataset]]:
    """Makes an input_fn: batches of four, without end while training; `keys` are its features."""

    def batches(labels: np.ndarray | None, *keys: str, repeat: bool = True) -> Any:
        def input_fn() -> tf.data.Dataset:
            chosen = {key: features[key] for key in keys or features}
            data = chosen if labels is None else (chosen, labels)
            dataset = tf.data.Dataset.from_tensor_slices(data).batch(4)
            return dataset.repeat() if repeat else dataset

        return input_fn

    return batches


@pytest.fixture
def save() -> Callable[[Path, Arrays], str]:
    """Writes a checkpoint of these variables, and a global step of 7 if there is none in them."""

    def save(folder: Path, values: Arrays) -> str:
        with tf.Graph().as_default(), v1.Session() as session:
            for name, value in {"global_step": np.int64(7), **values}.items():
                v1.get_variable(name, initializer=tf.constant(value))
            session.run(v1.global_variables_initializer())
            return str(v1.train.Saver().save(session, str(folder / "model.ckpt"), global_step=7))

    return save


@pytest.fixture
def wave() -> Callable[[dict[str, list[int]]], Arrays]:
    """Makes a value for each variable's name and shape: sines, other ones for each name."""

    def wave(shapes: dict[str, list[int]]) -> Arrays:
        return {
            name: np.sin(len(name) + np.arange(np.prod(shape, dtype=int)))
            .reshape(shape)
            .astype(np.float32)
            for name, shape in shapes.items()
        }

    return wave


@pytest.fixture
def losses() -> Callable[..., list[float]]:
    """Trains an estimator and returns the loss of each step."""

    class Watch(v1.train.SessionRunHook):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            self.losses: list[float] = []

        def begin(self) -> None:
            self.loss = v1.get_collection(v1.GraphKeys.LOSSES)[-1]

        def before_run(self, run_context: Any) -> Any:
            return v1.train.SessionRunArgs(self.loss)

        def after_run(self, run_context: Any, run_values: Any) -> None:
            self.losses.append(float(run_values.results))

    def losses(estimator: Any, input_fn: Any, steps: int = 4) -> list[float]:
        watch = Watch()
        estimator.train(input_fn, hooks=[watch], steps=steps)
        return watch.losses

    return losses
