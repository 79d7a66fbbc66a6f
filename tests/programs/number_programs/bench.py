"""The bench on which a program runs: a Keras, a strategy or none, small data, and `train`.

Rows are sorted and unbalanced, so that the mean of two halves is not the mean of all. A global
batch has 7 rows and the last one has 1: replicas have different numbers of rows, or none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import tensorflow as tf

from number_programs.table import Found

BATCH, ROWS, WORDS, TIMES = 7, 22, 12, 5


@dataclass(frozen=True, kw_only=True)
class Bench:
    """A Keras, and a strategy or none.

    Attributes:
      keras: Keras 3 or tf_keras.
      strategy: The strategy; None for plain Keras.
      num_workers: The workers of the layout; plain Keras knows with which it is compared.
      num_replicas: The replicas of a worker of the layout.
    """

    keras: ModuleType
    strategy: Any
    num_workers: int
    num_replicas: int

    @property
    def is_keras_3(self) -> bool:
        return not hasattr(self.keras, "__internal__")

    @property
    def in_sync(self) -> int:
        """The replicas of all workers."""
        return self.num_workers * self.num_replicas

    @property
    def layers(self) -> Any:
        return self.keras.layers

    @property
    def losses(self) -> Any:
        return self.keras.losses

    @property
    def metrics(self) -> Any:
        return self.keras.metrics

    @property
    def optimizers(self) -> Any:
        return self.keras.optimizers

    def scope(self) -> Any:
        """Returns the strategy's scope; nothing for plain Keras."""
        return contextlib.nullcontext() if self.strategy is None else self.strategy.scope()

    def sequential(self, x: Any, layers: Sequence[Any]) -> Any:
        """Returns a model of layers for such rows."""
        kind = np.asarray(x).dtype
        return self.keras.Sequential([self.keras.Input(x.shape[1:], dtype=str(kind)), *layers])

    def compiled(
        self, make: Callable[[], Any], loss: Any = "mse", optimizer: Any = None, **options: Any
    ) -> Any:
        """Returns the model that `make` returns in the scope, compiled there.

        A loss, an optimizer and metrics that are functions of nothing are called in the scope.
        """
        with self.scope():
            model = make()
            rule = optimizer() if callable(optimizer) else optimizer or self.optimizers.SGD(0.1)
            for kind in ("metrics", "weighted_metrics"):
                if callable(options.get(kind)):
                    options[kind] = options[kind]()
            if self.strategy is None and "steps_per_execution" not in options:
                # The numbers are the same, and nothing is traced.
                options.setdefault("run_eagerly", True)
            model.compile(rule, loss, **options)
        return model

    def train(
        self,
        make: Callable[[], Any],
        data: Any,
        *,
        evaluates: bool = False,
        predicts: bool = False,
        fit: dict[str, Any] | None = None,
        **options: Any,
    ) -> Found:
        """Trains a model for an epoch of 4 steps, and returns its numbers.

        Args:
          make: Returns the model, in the scope.
          data: A tuple of arrays, or what `fit` takes as x.
          evaluates: Whether `evaluate` runs afterwards.
          predicts: Whether `predict` runs afterwards.
          fit: More arguments of `fit`.
          **options: Arguments of `compiled`.
        """
        model = self.compiled(make, **options)
        return self.trained(model, data, evaluates=evaluates, predicts=predicts, **(fit or {}))

    def trained(
        self, model: Any, data: Any, *, evaluates: bool = False, predicts: bool = False, **fit: Any
    ) -> Found:
        """Trains a compiled model, as `train` does."""
        data = batches(data) if isinstance(data, tuple) else data
        history = model.fit(data, **{"verbose": 0, **fit}).history
        found = {f"history {name}": values for name, values in history.items()}
        if evaluates:
            numbers = model.evaluate(data, verbose=0, return_dict=True)
            found |= {f"evaluate {name}": value for name, value in numbers.items()}
        if predicts:
            found |= named("predicted", model.predict(data, verbose=0))
        return found | weights_of(model)


def weights_of(model: Any) -> Found:
    """Returns the weights of a model, which the optimizer and the layers change."""
    return {f"weight {number}": value for number, value in enumerate(model.get_weights())}


def named(name: str, values: Any) -> Found:
    """Returns arrays of a structure under names."""
    leaves = tf.nest.flatten(values)
    return {f"{name} {number}": np.asarray(leaf) for number, leaf in enumerate(leaves)}


# Data. Each has ROWS rows, sorted.


def numbers(width: int = 4) -> Any:
    """Returns float32 [rows, width], sorted by the second column."""
    x = np.random.RandomState(0).uniform(-1, 1, [ROWS, width]).astype("float32")
    return x[np.argsort(x[:, 1])]


def labels(num: int = 3) -> Any:
    """Returns int32 [rows], sorted: most are 0, few are the last."""
    share = np.arange(ROWS) / ROWS
    return np.minimum((share**2 * (num + 0.5)).astype("int32"), num - 1)


def one_hot(num: int = 3) -> Any:
    """Returns float32 [rows, num]."""
    return np.eye(num, dtype="float32")[labels(num)]


def sizes(width: int = 1) -> Any:
    """Returns float32 [rows, width], which grow."""
    x = numbers()
    return np.stack([x[:, 1] * (place + 1) + x[:, 0] ** 2 for place in range(width)], 1)


def row_weights() -> Any:
    """Returns float32 [rows]: some are 0, and the last are large."""
    weights = np.linspace(0.0, 3.0, ROWS) ** 2
    weights[::5] = 0.0
    return weights.astype("float32")


def sentences(first: int = 1) -> Any:
    """Returns int32 [rows, times], padded with 0: the first rows are short, the last long.

    Args:
      first: The length of the shortest.
    """
    random = np.random.RandomState(1)
    lengths = np.sort(random.randint(first, TIMES + 1, ROWS))
    words = random.randint(1, WORDS, [ROWS, TIMES])
    return np.where(np.arange(TIMES) < lengths[:, None], words, 0).astype("int32")


def series(width: int = 3, *, times: int = TIMES) -> Any:
    """Returns float32 [rows, times, width], sorted; what follows a sentence is 0."""
    x = np.random.RandomState(2).uniform(-1, 1, [ROWS, times, width]).astype("float32")
    x = x[np.argsort(x.mean((1, 2)))]
    return x * (sentences()[:, :times, None] > 0) if times <= TIMES else x


def images(size: int = 6, channels: int = 2) -> Any:
    """Returns float32 [rows, size, size, channels], from dark to bright."""
    x = np.random.RandomState(3).uniform(0, 1, [ROWS, size, size, channels])
    return (x + np.linspace(-1, 1, ROWS)[:, None, None, None]).astype("float32")


def batches(data: Any, size: int = BATCH) -> tf.data.Dataset:
    """Returns the batches of a structure of arrays."""
    return tf.data.Dataset.from_tensor_slices(data).batch(size)


def even_batches(data: Any, size: int = 12) -> tf.data.Dataset:
    """Returns one batch of the last rows, whose known size each number of replicas here divides."""
    rows = tf.data.Dataset.from_tensor_slices(data).skip(ROWS - size)
    return rows.batch(size, drop_remainder=True)
