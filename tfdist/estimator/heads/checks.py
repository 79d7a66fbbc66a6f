"""Checks of a head's arguments and of the shapes of its tensors.

Arguments are checked when a head is made. In a graph, the rank and the last dimension of a tensor
are checked when the graph is built, with ValueError. The other dimensions are checked when the
graph runs, with InvalidArgumentError. In eager execution all checks are made at once and raise
ValueError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1
import tf_keras

from tfdist.estimator.config.arguments import argument_names

MEAN = tf_keras.losses.Reduction.SUM_OVER_BATCH_SIZE
SUM = tf_keras.losses.Reduction.SUM
AUTO = tf_keras.losses.Reduction.AUTO  # The same as MEAN.


def check_loss_reduction(loss_reduction: Any) -> None:
    """Checks that the reduction is one of `tf.losses.Reduction` that returns a scalar."""
    allowed = [r for r in tf_keras.losses.Reduction.all() if r != "none"]
    if loss_reduction not in allowed:
        raise ValueError(
            f"Invalid loss_reduction: {loss_reduction}. See `tf.losses.Reduction`; allowed are "
            f"{allowed}."
        )


def check_loss_fn(loss_fn: Callable[..., tf.Tensor] | None) -> None:
    """Checks that loss_fn takes labels and logits, and optionally features."""
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
    """Checks that all thresholds are in the open interval (0, 1) and returns them as a tuple."""
    thresholds = tuple(thresholds or ())
    for threshold in thresholds:
        if not 0.0 < threshold < 1.0:
            raise ValueError(
                f"thresholds not in (0, 1): {thresholds}. All thresholds must be in (0, 1) range. "
                f"Given: {threshold}"
            )
    return thresholds


def check_vocabulary(vocabulary: Any, n_classes: int | None = None) -> None:
    """Checks that the vocabulary is None, a list or a tuple, with `n_classes` words if given."""
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


def checked_logits(logits: Any, dimension: int) -> tf.Tensor:
    """Casts logits to float32 and checks their shape, [D0, D1, ... DN, dimension].

    If the dimension is a tensor, it is compared when the graph runs.
    """
    rule = "logits shape must be [D0, D1, ... DN, logits_dimension]"
    with v1.name_scope("logits", values=(logits,)):
        logits = _with_rank_2(tf.cast(logits, tf.float32), "logits", rule)
        last = logits.shape.as_list()[-1] if logits.shape.rank is not None else None
        expected = tf.get_static_value(dimension)
        if None not in (last, expected) and last != expected:
            raise ValueError(f"{rule}, got {logits.shape}. logits_dimension is {expected}.")
        if last is not None:
            return logits
        shape = tf.shape(logits)  # int32 [rank of logits]
        return _require_shape(logits, tf.concat([shape[:-1], [dimension]], 0), rule, shape=shape)


def checked_labels(labels: Any, logits: tf.Tensor, dimension: int) -> tf.Tensor:
    """Checks that labels are dense and have the shape [D0, D1, ... DN, dimension].

    D0 ... DN are the leading dimensions of the logits. A last dimension of size 1 is added to
    labels of shape [D0, D1, ... DN].
    """
    if labels is None:
        raise ValueError(
            "You must provide a labels Tensor. Given: None. Let input_fn return (features, labels)."
        )
    if isinstance(labels, (tf.SparseTensor, v1.SparseTensorValue, tf.RaggedTensor)):
        kind = "Ragged" if isinstance(labels, tf.RaggedTensor) else "Sparse"
        raise ValueError(
            f"{kind}Tensor labels are not supported. Labels must be a Tensor of shape "
            f"[D0, D1, ..., DN, {dimension}], e.g. [batch_size, {dimension}]. Make them dense in "
            "input_fn: tf.sparse.to_dense(labels), labels.to_tensor()."
        )
    rule = (
        f"labels shape must be [D0, D1, ... DN, {dimension}]. Suggested Fix: check the head's "
        "number of classes, and the shape of labels."
    )
    with v1.name_scope("labels", values=(labels, logits)) as scope:
        labels = tf.convert_to_tensor(labels)
        if _lacks_last_dimension(labels, logits):
            labels = tf.expand_dims(labels, -1)  # [D0, D1, ... DN, 1]
        labels = _with_rank_2(labels, "labels", rule)
        last = labels.shape.as_list()[-1] if labels.shape.rank is not None else None
        if last is not None and last != dimension:
            raise ValueError(
                f"Mismatched label shape. Expected labels dimension={dimension}.  Received {last}. "
                "Suggested Fix: check the number of classes and the shape of labels; dimension 1 "
                "means ids, not one-hot vectors."
            )
        expected = tf.concat([tf.shape(logits)[:-1], [dimension]], 0)  # int32 [rank of logits]
        shown = {"expected_labels_shape": expected, "labels_shape": tf.shape(labels)}
        return _require_shape(labels, expected, rule, name=scope, **shown)


def checked_weights(
    features: Any, weight_column: Any, logits: tf.Tensor, *, is_per_logit: bool = False
) -> tf.Tensor | None:
    """Looks up the float32 weights of a batch and checks that their shape fits the logits.

    Returns:
      None if `weight_column` is None. Otherwise weights of shape [D0, D1, ... DN, 1], or of the
      logits' shape if `is_per_logit`.

    Raises:
      TypeError: If `weight_column` is neither a feature's name nor a numeric column.
    """
    if weight_column is None:
        return None
    rule = "weights shape must be [D0, D1, ... DN] or [D0, D1, ... DN, 1]"
    if is_per_logit:
        rule = (
            "weights shape must be [D0, D1, ... DN], [D0, D1, ... DN, 1] or "
            "[D0, D1, ... DN, logits_dimension]"
        )
    with v1.name_scope("weights", values=(logits,)) as scope:
        weights = _look_up(features, weight_column)
        shape = tf.shape(logits)
        shown = {"logits_shape": shape, "weights_shape": tf.shape(weights)}
        if _lacks_last_dimension(weights, logits):
            weights = _require_shape(weights, shape[:-1], rule, **shown)
            return tf.expand_dims(weights, -1, name=scope)  # [D0, D1, ... DN, 1]
        one_each = tf.concat([shape[:-1], [1]], 0)  # int32 [rank of logits]
        also = shape if is_per_logit else None
        return _require_shape(weights, one_each, rule, also=also, name=scope, **shown)


def checked_losses(losses: Any, logits: tf.Tensor, dimension: int) -> tf.Tensor:
    """Checks that the user's loss_fn returned the shape [D0, D1, ... DN, dimension]."""
    shape = tf.shape(logits)
    return _require_shape(
        tf.convert_to_tensor(losses),
        tf.concat([shape[:-1], [dimension]], 0),
        f"loss_fn must return Tensor of shape [D0, D1, ... DN, {dimension}]. ",
        logits_shape=shape,
        loss_shape=tf.shape(losses),
    )


def checked_range(labels: tf.Tensor, n_classes: int, message: str | None = None) -> tf.Tensor:
    """Checks that all labels are in [0, n_classes - 1] and returns them."""
    with v1.name_scope("check_label_range", values=(labels,)):
        largest = tf.cast(n_classes - 1, labels.dtype)
        if tf.executing_eagerly():
            if not tf.reduce_all(labels <= largest):
                raise ValueError(message or f"Labels must be <= {n_classes} - 1")
            if not tf.reduce_all(labels >= 0):
                raise ValueError(message or "Labels must be >= 0")
            return labels
        too_large = message or "Labels must be <= n_classes - 1"
        checks = [
            v1.debugging.assert_less_equal(labels, largest, message=too_large),
            v1.debugging.assert_non_negative(labels, message=message or "Labels must be >= 0"),
        ]
        with tf.control_dependencies(checks):
            return tf.identity(labels)


def key_of(weight_column: Any) -> str:
    """Returns the name of the feature with the weights; TypeError unless it is a name or column."""
    if isinstance(weight_column, str):
        return weight_column
    if not hasattr(weight_column, "normalizer_fn"):
        raise TypeError(
            "Weight column must be either a string or NumericColumn. Given type: "
            f"{type(weight_column)}."
        )
    return str(weight_column.key)


def _look_up(features: Any, column: Any) -> tf.Tensor:
    """Returns the weights as a numeric column does: float32, with [batch] made [batch, 1]."""
    key = key_of(column)
    if features is None or key not in features:
        raise ValueError(
            f"Feature {key} is not in features dictionary: it has "
            f"{sorted(map(str, features or ()))}. Let input_fn return it, or change weight_column."
        )
    value = features[key]
    if isinstance(value, (tf.SparseTensor, v1.SparseTensorValue, tf.RaggedTensor)):
        raise ValueError(
            f"Weights must be a dense Tensor, the feature {key} is {value!r}. Make it dense in "
            "input_fn."
        )
    weights = tf.convert_to_tensor(value)
    if weights.shape.rank == 0:
        raise ValueError(
            f"Feature (key: {key}) cannot have rank 0. Give each example a weight of its own."
        )
    if weights.shape.rank == 1:
        weights = tf.expand_dims(weights, -1)  # [batch, 1]
    elif weights.shape.rank is None:
        is_flat = tf.equal(tf.rank(weights), 1)
        weights = tf.cond(is_flat, lambda: tf.expand_dims(weights, -1), lambda: weights)
    if not isinstance(column, str) and column.normalizer_fn is not None:
        weights = column.normalizer_fn(weights)
    if not (weights.dtype.is_floating or weights.dtype.is_integer or weights.dtype.is_bool):
        raise ValueError(f"Weight column should be castable to float. Given dtype: {weights.dtype}")
    return tf.cast(weights, tf.float32)


def _lacks_last_dimension(tensor: tf.Tensor, logits: tf.Tensor) -> bool:
    rank, of_logits = tensor.shape.rank, logits.shape.rank
    return rank is not None and of_logits is not None and rank == of_logits - 1


def _with_rank_2(tensor: tf.Tensor, noun: str, rule: str) -> tf.Tensor:
    rank = tensor.shape.rank
    if rank is not None and rank < 2:
        raise ValueError(
            f"{rule.rstrip('.')}. {noun} must have rank at least 2.  Received rank {rank}, "
            f"shape {tensor.shape}"
        )
    if rank is not None:
        return tensor
    check = v1.debugging.assert_rank_at_least(tensor, 2, message=rule)
    with tf.control_dependencies([check]):
        return tf.identity(tensor)


def _require_shape(
    tensor: tf.Tensor,
    expected: Any,
    rule: str,
    *,
    also: Any = None,
    name: str | None = None,
    **shown: Any,
) -> tf.Tensor:
    """Returns the tensor, called `name` in a graph, if its shape is `expected` or `also`.

    Otherwise the error has the rule and the shapes to be shown. Shapes are int32 vectors.
    """
    allowed = [expected] if also is None else [expected, also]
    found = tf.shape(tensor)  # int32 [rank of tensor]
    if tf.executing_eagerly():
        if not any(found.numpy().tolist() == shape.numpy().tolist() for shape in allowed):
            shapes = ", ".join(f"{k}: {tuple(v.numpy().tolist())}" for k, v in shown.items())
            raise ValueError(f"{rule.rstrip(' .')}: {shapes}.")
        return tensor
    fits = tf.reduce_any([_are_equal(found, shape) for shape in allowed])  # bool []
    data = [rule]
    for what, shape in shown.items():
        data += [f"{what}: ", shape]
    with tf.control_dependencies([tf.debugging.Assert(fits, data)]):
        return tf.identity(tensor, name=name)


def _are_equal(one: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
    """Returns a bool scalar: True if two shapes, possibly of different ranks, are equal."""
    have_equal_ranks = tf.equal(tf.size(one), tf.size(other))
    equal = tf.raw_ops.Equal(x=one, y=other, incompatible_shape_error=False)
    return have_equal_ranks & tf.reduce_all(equal)
