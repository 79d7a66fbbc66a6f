"""The layers of towers, and checks of the feature columns that they take.

These are the layers of tf.estimator's newer models. The layers of tf.compat.v1.estimator are made
in variable scopes by `tfdist.estimator.v1.model.ScopedLayers`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1
import tf_keras

from tfdist.strategies.private_tensorflow import is_v2_column

Activation = Callable[[tf.Tensor], tf.Tensor] | str | None

# The momentum of tf.estimator; the default of Keras is 0.99.
BATCH_NORM_MOMENTUM = 0.999


class Layers:
    """The layers of one tower in the current graph: tf_keras layers with full names.

    Attributes:
      variables: The variables that the tower's optimizer updates.
      updates: Ops to run in each step, such as those of batch normalization.
    """

    takes_v1_columns = False
    linear_name = "linear/linear_model"

    def __init__(self) -> None:
        self.variables: list[Any] = []
        self.updates: list[Any] = []

    def scope(self, tower: str) -> contextlib.AbstractContextManager[Any]:
        """Returns the scope of a tower's layers and summaries.

        Args:
          tower: "dnn", "linear" or "baseline".
        """
        # With the slash, the scope is named "dnn" even if the graph already has such a scope.
        return tf.name_scope("dnn/") if tower == "dnn" else contextlib.nullcontext()

    def tag(self, layer: str) -> str:
        """Returns the tag of a layer's summaries within the tower's scope."""
        return layer

    def call(self, layer: Any, *inputs: Any, **options: Any) -> tf.Tensor:
        """Calls a Keras layer and records its variables and updates."""
        values = layer(*inputs, **options)
        self.variables += layer.trainable_variables
        self.updates += layer.updates
        return values

    def input(
        self, features: dict[str, Any], feature_columns: Sequence[Any], is_training: bool
    ) -> tf.Tensor:
        """Returns the concatenated dense columns, float32 [batch, sum of the columns' sizes]."""
        columns = check_columns(feature_columns)
        name = "input_from_feature_columns/input_layer"
        layer = tf_keras.layers.DenseFeatures(columns, name=name)
        values = self.call(layer, features, training=is_training)
        if is_training:
            _warn_of_shared(columns)
        return values

    def dense(self, values: tf.Tensor, size: int, activation_fn: Activation, name: str) -> Any:
        """Returns activation_fn(values * kernel + bias), float32 [batch, size]."""
        layer = tf_keras.layers.Dense(
            size,
            activation=activation_fn,
            kernel_initializer=v1.glorot_uniform_initializer(),
            name=name,
        )
        return self.call(layer, values)

    def dropout(self, values: tf.Tensor, rate: float) -> tf.Tensor:
        """Drops the fraction `rate` of the values and scales up the others."""
        return self.call(tf_keras.layers.Dropout(rate), values, training=True)

    def batch_norm(self, values: tf.Tensor, name: str, is_training: bool) -> tf.Tensor:
        """Normalizes each column of the values; in training, by the moments of the batch."""
        layer = tf_keras.layers.BatchNormalization(momentum=BATCH_NORM_MOMENTUM, name=name)
        return self.call(layer, values, training=is_training)


def summarize_layer(values: tf.Tensor, tag: str) -> None:
    """Writes the scalar '<tag>/fraction_of_zero_values' and the histogram '<tag>/activation'."""
    v1.summary.scalar(f"{tag}/fraction_of_zero_values", tf.math.zero_fraction(values))
    v1.summary.histogram(f"{tag}/activation", values)


def check_columns(feature_columns: Iterable[Any]) -> list[Any]:
    """Returns the columns sorted by name, which is the order in which a layer uses them.

    Raises:
      ValueError: If there are no columns, one is not a column of `tf.feature_column`, or two have
        the same name.
    """
    columns = list(feature_columns)
    for column in columns:
        if not is_v2_column(column):
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


def _warn_of_shared(columns: Iterable[Any]) -> None:
    """Logs the shared embeddings, which no tower trains because they belong to no layer.

    tf.estimator does not train them either: its checkpoints have no slots for them.
    """
    creators = (getattr(column, "shared_embedding_column_creator", None) for column in columns)
    names = {creator.embedding_weights.op.name for creator in creators if creator is not None}
    if names:
        v1.logging.warning(
            "%s is not trained, as in tf.estimator: it belongs to no layer of this model. Use "
            "tf.feature_column.embedding_column for embeddings that learn.",
            ", ".join(sorted(names)),
        )
