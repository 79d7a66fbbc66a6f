"""numpy_input_fn: batches of numpy arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tfdist.estimator.inputs.feeding import Array, check_shuffle, next_batch

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
) -> Callable[[], Any]:
    """Makes an input_fn that feeds numpy arrays to one process, not to several workers.

    Args:
      x: An array [rows, ...], or a dict of such arrays.
      y: Labels: an array, a dict of arrays, or None.
      batch_size: Rows in a batch. Batches cross the ends of epochs; the last one may be smaller.
      num_epochs: How often each row comes; None is without end.
      shuffle: True or False; there is no default.
      queue_capacity: Rows that wait in the queue. A quarter of it is what shuffling mixes.
      num_threads: Threads that fill the queue, each with all epochs.

    Returns:
      A function of nothing that returns features, or (features, labels): tensors for arrays, and
      dicts of tensors for dicts. It raises ValueError for empty or unequally long data and for keys
      that x and y share, and TypeError if x is neither array nor dict.

    Raises:
      ValueError: If `shuffle` is neither True nor False.
    """
    check_shuffle(shuffle)

    def input_fn() -> Any:
        features = _columns(x)
        labels = _label_columns(y, features)
        _check_lengths(features, labels, y)
        tensors = next_batch(
            {**features, **labels},
            batch_size=batch_size,
            num_epochs=num_epochs,
            shuffle=bool(shuffle),
            capacity=queue_capacity,
            min_after_dequeue=int(queue_capacity / 4),
            num_threads=num_threads,
        )
        by_name = dict(zip([*features, *labels], tensors, strict=True))
        own = {name: by_name[name] for name in features} if isinstance(x, dict) else tensors[0]
        if y is None:
            return own
        if isinstance(y, dict):
            return own, {name: by_name[name] for name in labels}
        return own, tensors[-1]

    return input_fn


def _columns(x: Any) -> dict[str, Array]:
    if isinstance(x, dict):
        if not x:
            raise ValueError("x cannot be an empty dict. Give at least one array.")
        return dict(sorted(x.items()))
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
        shared = sorted(features.keys() & y.keys())
        if shared:
            raise ValueError(
                f"{len(shared)} duplicate keys are found in both x and y: {shared}. Rename them in "
                "one of the two."
            )
        return dict(sorted(y.items()))
    name = _TARGET
    while name in features:
        name += "_n"
    return {name: y}


def _check_lengths(features: dict[str, Array], labels: dict[str, Array], y: Any) -> None:
    if len({column.shape[0] for column in (*features.values(), *labels.values())}) == 1:
        return
    of_x = {name: column.shape for name, column in features.items()}
    of_y = {name: column.shape for name, column in labels.items()}
    raise ValueError(
        "Length of tensors in x and y is mismatched: all need the same first dimension. Shapes in "
        f"x: {of_x}. Shapes in y: {of_y if isinstance(y, dict) else list(of_y.values())}."
    )
