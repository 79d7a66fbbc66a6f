"""What heads refuse when they are made."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tf_keras

from tfdist.estimator.calls import argument_names

MEAN = tf_keras.losses.Reduction.SUM_OVER_BATCH_SIZE
SUM = tf_keras.losses.Reduction.SUM
AUTO = tf_keras.losses.Reduction.AUTO  # Means MEAN.


def check_loss_reduction(loss_reduction: Any) -> None:
    """Requires one of `tf.losses.Reduction` that gives a scalar."""
    allowed = [r for r in tf_keras.losses.Reduction.all() if r != "none"]
    if loss_reduction not in allowed:
        raise ValueError(
            f"Invalid loss_reduction: {loss_reduction}. See `tf.losses.Reduction`; allowed are "
            f"{allowed}."
        )


def check_loss_fn(loss_fn: Callable[..., Any] | None) -> None:
    """Requires a loss_fn that takes labels and logits, and maybe features."""
    if not loss_fn:
        return
    names = argument_names(loss_fn)
    for needed in ("labels", "logits"):
        if needed not in names:
            raise ValueError(f"loss_fn must contain argument: {needed}. Given arguments: {names}")
    unknown = sorted(set(names) - {"labels", "logits", "features", "loss_reduction"})
    if unknown:
        raise ValueError(
            f"loss_fn has unexpected args: {unknown}. Allowed: labels, logits, features."
        )


def checked_thresholds(thresholds: Iterable[float] | None) -> tuple[float, ...]:
    """Requires numbers between 0 and 1, both excluded."""
    thresholds = tuple(thresholds or ())
    for threshold in thresholds:
        if not 0.0 < threshold < 1.0:
            raise ValueError(
                f"thresholds not in (0, 1): {thresholds}. All thresholds must be in (0, 1) range. "
                f"Given: {threshold}"
            )
    return thresholds


def check_vocabulary(vocabulary: Any, n_classes: Any = None) -> None:
    """Requires None or a list or tuple, of n_classes words if that is given."""
    if vocabulary is None:
        return
    if not isinstance(vocabulary, (list, tuple)):
        raise ValueError(
            f"label_vocabulary should be a list or a tuple. Given type: {type(vocabulary)}"
        )
    if n_classes is not None and len(vocabulary) != n_classes:
        raise ValueError(
            f'"label_vocabulary" does not have "n_classes" items. len(label_vocabulary)='
            f"{len(vocabulary)}, n_classes={n_classes}, label_vocabulary={vocabulary}"
        )
