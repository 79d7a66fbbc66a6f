"""Feature columns of canned estimators: checks, and specs to parse examples with."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

_columns = tf.__internal__.feature_column


def are_of_v2(feature_columns: Iterable[Any]) -> bool:
    """Says whether all are columns of `tf.feature_column`, not of TensorFlow 1."""
    return all(getattr(column, "_is_v2_column", False) for column in feature_columns)


def check_columns(feature_columns: Iterable[Any]) -> list[Any]:
    """Returns the columns sorted by name, the order in which a layer uses them.

    Raises:
      ValueError: If there are none, one is no feature column of `tf.feature_column`, or two have
        one name.
    """
    columns = list(feature_columns)
    for column in columns:
        if not are_of_v2([column]):
            raise ValueError(
                "Received a feature column from TensorFlow v1, but this is a TensorFlow v2 "
                f"Estimator: {column!r}. Make it with tf.feature_column."
            )
    if not columns:
        raise ValueError("feature_columns must not be empty. Give at least one.")
    by_name: dict[str, Any] = {}
    for column in columns:
        if column.name in by_name:
            raise ValueError(
                f"Duplicate feature column name found for columns: {column} and "
                f"{by_name[column.name]}. Leave one out, or rename its feature."
            )
        by_name[column.name] = column
    return [by_name[name] for name in sorted(by_name)]


def warn_of_shared(columns: Iterable[Any]) -> None:
    """Says which embeddings no tower trains: shared ones belong to no layer.

    So it was in tf.estimator, whose checkpoints have no slots for them.
    """
    creators = (getattr(column, "shared_embedding_column_creator", None) for column in columns)
    names = {creator.embedding_weights.op.name for creator in creators if creator is not None}
    if names:
        v1.logging.warning(
            "%s is not trained, as in tf.estimator: it belongs to no layer of this model. Use "
            "tf.feature_column.embedding_column for embeddings that learn.",
            ", ".join(sorted(names)),
        )


def is_categorical(column: Any) -> bool:
    """Says whether a column gives ids, which a linear model has one weight each for."""
    return hasattr(column, "num_buckets") and hasattr(column, "get_sparse_tensors")


def is_dense(column: Any) -> bool:
    """Says whether a column gives a dense tensor of numbers."""
    return isinstance(column, _columns.DenseColumn)


def scope_name(column: Any) -> str:
    """Returns the part of a variable's name that stands for the column."""
    return re.sub(r"[^A-Za-z0-9_.\-]", "_", column.name)


def classifier_parse_example_spec(
    feature_columns: Iterable[Any],
    label_key: str,
    label_dtype: Any = tf.int64,
    label_default: Any = None,
    weight_column: Any = None,
) -> dict[str, Any]:
    """Returns the parsing spec of a classifier's examples, by feature name.

    Args:
      feature_columns: Columns of `tf.feature_column`.
      label_key: The label's name in an example; its shape is [1].
      label_dtype: tf.int64, or tf.string with a label vocabulary.
      label_default: The label of examples that have none; None refuses those.
      weight_column: Name or numeric column of the example's weight.

    Raises:
      ValueError: If label or weight are also features, or weight_column is of another type.
    """
    label = tf.io.FixedLenFeature((1,), label_dtype, label_default)
    return _with_label_and_weight(feature_columns, label_key, label, weight_column)


def regressor_parse_example_spec(
    feature_columns: Iterable[Any],
    label_key: str,
    label_dtype: Any = tf.float32,
    label_default: Any = None,
    label_dimension: int = 1,
    weight_column: Any = None,
) -> dict[str, Any]:
    """Returns the parsing spec of a regressor's examples, by feature name.

    Args:
      feature_columns: Columns of `tf.feature_column`.
      label_key: The label's name in an example; its shape is [label_dimension].
      label_dtype: Type of the label's numbers.
      label_default: The label of examples that have none; None refuses those.
      label_dimension: Numbers in a label.
      weight_column: Name or numeric column of the example's weight.

    Raises:
      ValueError: If label or weight are also features, or weight_column is of another type.
    """
    label = tf.io.FixedLenFeature((label_dimension,), label_dtype, label_default)
    return _with_label_and_weight(feature_columns, label_key, label, weight_column)


def _with_label_and_weight(
    feature_columns: Iterable[Any], label_key: str, label: Any, weight_column: Any
) -> dict[str, Any]:
    spec: dict[str, Any] = tf.feature_column.make_parse_example_spec(feature_columns)
    if label_key in spec:
        raise ValueError(
            f"label should not be used as feature. label_key: {label_key}, features: {list(spec)}"
        )
    spec[label_key] = label
    if weight_column is None:
        return spec
    if isinstance(weight_column, str):
        weight_column = tf.feature_column.numeric_column(weight_column)
    if not hasattr(weight_column, "normalizer_fn"):
        raise ValueError(
            "weight_column should be an instance of tf.feature_column.numeric_column. Given type: "
            f"{type(weight_column)} value: {weight_column}"
        )
    if weight_column.key in spec:
        raise ValueError(
            "weight_column should not be used as feature. weight_column: "
            f"{weight_column.key}, features: {list(spec)}"
        )
    return {**spec, **weight_column.parse_example_spec}
