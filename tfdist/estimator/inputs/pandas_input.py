"""pandas_input_fn: batches of a DataFrame. Needs pandas, which is loaded on use."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from tfdist.estimator.inputs.feeding import Array, check_shuffle, next_batch


def pandas_input_fn(
    x: Any,
    y: Any = None,
    batch_size: int = 128,
    num_epochs: int | None = 1,
    shuffle: bool | None = None,
    queue_capacity: int | None = 1000,
    num_threads: int = 1,
    target_column: str = "target",
) -> Callable[[], Any]:
    """Makes an input_fn that feeds a DataFrame to one process, not to several workers.

    Args:
      x: A DataFrame; copied.
      y: Labels: a Series or DataFrame with x's index, or None.
      batch_size: Rows in a batch. Batches cross the ends of epochs; the last one may be smaller.
      num_epochs: How often each row comes; None is without end.
      shuffle: True or False; there is no default.
      queue_capacity: Rows that wait in the queue; None is as many as x has, with shuffling four
        times as many.
      num_threads: Threads that fill the queue, each with all epochs.
      target_column: A name for y that x does not have.

    Returns:
      A function of nothing that returns features, or (features, labels). Features are a dict of
      column name to tensor [batch]; labels are such a dict for a DataFrame, else a tensor [batch].

    Raises:
      TypeError: If pandas is not installed, or `target_column` is no string.
      ValueError: If `shuffle` is neither True nor False, x has a column called `target_column`, or
        the indexes differ.
    """
    pandas = _load_pandas()
    check_shuffle(shuffle)
    if not isinstance(target_column, str):
        raise TypeError(f"target_column must be a string type, got {target_column!r}.")
    if y is not None:
        _check_labels(x, y, target_column)
    names, has_label_names = list(x.columns), isinstance(y, pandas.DataFrame)
    columns = {f"feature {i}": _array(x[name]) for i, name in enumerate(names)}
    label_names = list(y.columns) if has_label_names else [target_column]
    if y is not None:
        parts = [y[name] for name in label_names] if has_label_names else [y]
        columns.update({f"label {i}": _array(part) for i, part in enumerate(parts)})
    if queue_capacity is None:
        queue_capacity = 4 * len(x) if shuffle else len(x)
    capacity = queue_capacity

    def input_fn() -> Any:
        tensors = next_batch(
            columns,
            batch_size=batch_size,
            num_epochs=num_epochs,
            shuffle=bool(shuffle),
            capacity=capacity,
            min_after_dequeue=int(max(capacity / 4, 1)),
            num_threads=num_threads,
        )
        features = dict(zip(names, tensors[: len(names)], strict=True))
        labels = tensors[len(names) :]
        if y is None:
            return features
        if has_label_names:
            return features, dict(zip(label_names, labels, strict=True))
        return features, labels[0]

    return input_fn


def _load_pandas() -> ModuleType:
    try:
        return importlib.import_module("pandas")
    except ImportError as error:
        raise TypeError(
            "pandas_input_fn should not be called without pandas installed. Run: pip install pandas"
        ) from error


def _check_labels(x: Any, y: Any, target_column: str) -> None:
    if target_column in x:
        raise ValueError(
            f"Cannot use name {target_column} for target column: DataFrame already has a column "
            f"with that name: {list(x.columns)}. Give another target_column."
        )
    if not np.array_equal(x.index, y.index):
        raise ValueError(
            f"Index for x and y are mismatched. Index for x: {x.index}. Index for y: {y.index}."
        )


def _array(column: Any) -> Array:
    """Copies a column; text of any of pandas' types comes as objects, TensorFlow's strings."""
    return np.array(column.to_numpy())
