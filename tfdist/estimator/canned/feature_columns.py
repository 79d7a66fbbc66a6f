"""Parsing specs for `tf.io.parse_example` with the features, label and weight of an example."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf


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
      label_key: Name of the label in an example. The label has the shape [1].
      label_dtype: tf.int64, or tf.string with a label vocabulary.
      label_default: The label of examples without one. If None, such examples are refused.
      weight_column: Name or numeric column of the example's weight.

    Raises:
      ValueError: If the label or the weight is also a feature, or `weight_column` is of another
        type.
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
      label_key: Name of the label in an example. The label has the shape [label_dimension].
      label_dtype: Dtype of the label.
      label_default: As in `classifier_parse_example_spec`.
      label_dimension: Number of values in a label.
      weight_column: As in `classifier_parse_example_spec`.

    Raises:
      ValueError: As in `classifier_parse_example_spec`.
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
