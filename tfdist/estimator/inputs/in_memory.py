"""Input functions for data in memory: `numpy_input_fn` and `pandas_input_fn`.

pandas is imported when `pandas_input_fn` is called.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.estimator.config.arguments import InputFn
from tfdist.estimator.inputs.feeding import Array, check_feeding, next_batch

_ALONE = "__direct_np_input__"
_TARGET = "__target_key__"


def numpy_input_fn(
    x: Any,
    y: Any = None,
    batch_size: int = 128,
    num_epochs: int | None = 1,
    shuffle: bool | None = None,
    queue_capacity: int = 1000,
    num_threads: int = 1,
) -> InputFn:
    """Returns an input_fn that feeds numpy arrays; each worker of a strategy gets a share of rows.

    Args:
      x: An array [rows, ...], or a dict of such arrays.
      y: Labels: an array [rows, ...], a dict of such arrays, or None.
      batch_size: Number of rows in a batch. Batches cross the ends of epochs; the last batch may be
        smaller.
      num_epochs: Number of times that each row is returned. None means without end.
      shuffle: True or False; there is no default.
      queue_capacity: Capacity of the queue in rows. With shuffling, a quarter of it stays in the
        queue to be mixed with new rows.
      num_threads: Number of threads that fill the queue. Each reads all epochs.

    Returns:
      A function that returns features, or (features, labels). Arrays become
      tensors [batch, ...], and dicts of arrays become dicts of tensors. The function raises
      ValueError if the data is empty, lengths differ, or x and y share keys. It raises TypeError if
      x is neither an array nor a dict.

    Raises:
      ValueError: If `shuffle` is neither True nor False, or a number is not positive.
    """
    check_feeding(batch_size, num_epochs, shuffle, queue_capacity, num_threads)

    def input_fn(input_context: tf.distribute.InputContext | None = None) -> Any:
        features = _columns(x)
        labels = _label_columns(y, features)
        _check_lengths(features, labels, y)
        tensors = next_batch(
            _own_rows([*features.values(), *labels.values()], input_context),
            batch_size=batch_size,
            num_epochs=num_epochs,
            shuffle=bool(shuffle),
            capacity=queue_capacity,
            min_after_dequeue=int(queue_capacity / 4),
            num_threads=num_threads,
        )
        own = _packed(tensors[: len(features)], list(features) if isinstance(x, dict) else None)
        if y is None:
            return own
        return own, _packed(tensors[len(features) :], list(labels) if isinstance(y, dict) else None)

    return input_fn


def _columns(x: Any) -> dict[str, Array]:
    if isinstance(x, dict):
        if not x:
            raise ValueError("x cannot be an empty dict. Give at least one array.")
        return dict(sorted(x.items(), key=_name))
    if isinstance(x, np.ndarray):
        if x.size == 0:
            raise ValueError(f"x cannot be an empty array, got one of shape {x.shape}.")
        return {_ALONE: x}
    raise TypeError(f"x must be a dict or array; got {type(x).__name__}.")


def _label_columns(y: Any, features: dict[str, Array]) -> dict[str, Array]:
    if y is None:
        return {}
    if isinstance(y, dict):
        if not y:
            raise ValueError("y cannot be empty dict, use None instead.")
        shared = sorted(features.keys() & y.keys(), key=str)
        if shared:
            raise ValueError(
                f"{len(shared)} duplicate keys are found in both x and y: {shared}. Rename them in "
                "one of the two."
            )
        return dict(sorted(y.items(), key=_name))
    return {_TARGET: y}


def _packed(tensors: list[tf.Tensor], names: list[str] | None) -> Any:
    """Returns a dict of the tensors by name; without names the only tensor."""
    return tensors[0] if names is None else dict(zip(names, tensors, strict=True))


def _name(item: tuple[Any, Any]) -> str:
    return str(item[0])


def _own_rows(columns: list[Array], context: tf.distribute.InputContext | None) -> list[Array]:
    """Returns this worker's share of the rows: every n-th one of n workers."""
    if context is None or context.num_input_pipelines == 1:
        return columns
    count = context.num_input_pipelines
    rows = len(columns[0])
    if rows < count:
        raise ValueError(f"{rows} rows do not suffice for {count} workers. Use fewer workers.")
    own = context.input_pipeline_id
    v1.logging.info("Worker %d reads rows %d, %d, ... of %d.", own, own, own + count, rows)
    return [column[own::count] for column in columns]


def _check_lengths(features: dict[str, Array], labels: dict[str, Array], y: Any) -> None:
    if len({column.shape[0] for column in (*features.values(), *labels.values())}) == 1:
        return
    of_x = {name: column.shape for name, column in features.items()}
    of_y = {name: column.shape for name, column in labels.items()}
    raise ValueError(
        "Length of tensors in x and y is mismatched: all need the same first dimension. Shapes in "
        f"x: {of_x}. Shapes in y: {of_y if isinstance(y, dict) else list(of_y.values())}."
    )


def pandas_input_fn(
    x: Any,
    y: Any = None,
    batch_size: int = 128,
    num_epochs: int | None = 1,
    shuffle: bool | None = None,
    queue_capacity: int | None = 1000,
    num_threads: int = 1,
    target_column: str = "target",
) -> InputFn:
    """Returns an input_fn that feeds a DataFrame; each worker of a strategy gets a share of rows.

    Args:
      x: A DataFrame. It is copied.
      y: Labels: a Series or a DataFrame with the same index as x, or None.
      batch_size: As in `numpy_input_fn`.
      num_epochs: As in `numpy_input_fn`.
      shuffle: True or False; there is no default.
      queue_capacity: Capacity of the queue in rows. None means the number of rows of x, or four
        times that number with shuffling.
      num_threads: As in `numpy_input_fn`.
      target_column: A name for y that is not a column of x.

    Returns:
      A function that returns features, or (features, labels). Features are a dict
      from column name to tensor [batch]. Labels are such a dict if y is a DataFrame, otherwise a
      tensor [batch]. It raises ValueError if x has no rows, and `shuffle` is True or `num_epochs`
      None.

    Raises:
      TypeError: If pandas is not installed, or `target_column` is not a string.
      ValueError: If `shuffle` is neither True nor False, a number is not positive, x has a column
        named `target_column`, or the indexes differ.
    """
    pandas = _load_pandas()
    check_feeding(batch_size, num_epochs, shuffle, queue_capacity, num_threads)
    if not isinstance(target_column, str):
        raise TypeError(f"target_column must be a string type, got {target_column!r}.")
    if y is not None:
        _check_labels(x, y, target_column)
    names = list(x.columns)
    label_names = list(y.columns) if isinstance(y, pandas.DataFrame) else None
    columns = [_array(x[name]) for name in names]
    if label_names is not None:
        columns += [_array(y[name]) for name in label_names]
    elif y is not None:
        columns.append(_array(y))
    if queue_capacity is None:
        queue_capacity = 4 * len(x) if shuffle else len(x)
    capacity = queue_capacity

    def input_fn(input_context: tf.distribute.InputContext | None = None) -> Any:
        tensors = next_batch(
            _own_rows(columns, input_context),
            batch_size=batch_size,
            num_epochs=num_epochs,
            shuffle=bool(shuffle),
            capacity=capacity,
            min_after_dequeue=int(max(capacity / 4, 1)),
            num_threads=num_threads,
        )
        features = _packed(tensors[: len(names)], names)
        return features if y is None else (features, _packed(tensors[len(names) :], label_names))

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
    """Copies a column; text in any of pandas' types becomes objects, which TensorFlow accepts."""
    return np.array(column.to_numpy())  # [rows]
