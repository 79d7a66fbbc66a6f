"""Logits of the v1 models: `tf.compat.v1.estimator.experimental`'s builders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1
import tf_keras

from tfdist.estimator.canned.columns import are_of_v2, check_columns
from tfdist.estimator.canned.dnn import Activation, summarize_layer
from tfdist.estimator.canned.linear import LinearLayer, summarize_weights
from tfdist.estimator.spec import ModeKeys


def dnn_logit_fn_builder(
    units: int,
    hidden_units: Sequence[int],
    feature_columns: Sequence[Any],
    activation_fn: Activation,
    dropout: float | None,
    input_layer_partitioner: Any,
    batch_norm: bool,
) -> Callable[[Any, str], tf.Tensor]:
    """Returns a function of (features, mode) that builds a network and its summaries.

    Args:
      units: Logits of an example.
      hidden_units: Size of each hidden layer.
      feature_columns: Dense columns.
      activation_fn: Of the hidden layers; None is the identity.
      dropout: The part of each hidden layer's values that training drops.
      input_layer_partitioner: Divides embeddings.
      batch_norm: Whether batch normalization follows each hidden layer; its updates are in the
        graph's UPDATE_OPS.

    Raises:
      ValueError: If units is not an int.
    """
    if not isinstance(units, int):
        raise ValueError(f"units must be an int. Given type: {type(units)}")

    def dnn_logit_fn(features: Any, mode: str) -> tf.Tensor:
        is_training = mode == ModeKeys.TRAIN
        with v1.variable_scope("input_from_feature_columns", partitioner=input_layer_partitioner):
            net = _input_layer(features, feature_columns)
        for i, size in enumerate(hidden_units):
            with v1.variable_scope(f"hiddenlayer_{i}") as scope:
                net = _dense(net, size, activation_fn)
                if dropout is not None and is_training:
                    net = tf.nn.dropout(net, rate=dropout)
                if batch_norm:
                    norm = v1.layers.BatchNormalization(momentum=0.999, name=f"batchnorm_{i}")
                    net = norm(net, training=is_training)
            summarize_layer(net, scope.name)
        with v1.variable_scope("logits") as scope:
            logits = _dense(net, units, None)
        summarize_layer(logits, scope.name)
        return logits

    return dnn_logit_fn


def _input_layer(features: Any, feature_columns: Sequence[Any]) -> tf.Tensor:
    if not are_of_v2(feature_columns):
        return v1.feature_column.input_layer(features, feature_columns)
    return v1.keras.layers.DenseFeatures(check_columns(feature_columns), name="input_layer")(
        features
    )


def _dense(values: tf.Tensor, units: int, activation_fn: Activation) -> tf.Tensor:
    """A dense layer with the variables kernel and bias of the current scope."""
    kernel = v1.get_variable(
        "kernel", [values.shape[-1], units], initializer=v1.glorot_uniform_initializer()
    )
    bias = v1.get_variable("bias", [units], initializer=v1.zeros_initializer())
    sums = tf.nn.bias_add(tf.matmul(values, kernel), tf.convert_to_tensor(bias))
    return tf_keras.activations.get(activation_fn)(sums)


def linear_logit_fn_builder(
    units: int, feature_columns: Sequence[Any], sparse_combiner: str = "sum"
) -> Callable[[Any], tf.Tensor]:
    """Returns a function of features that builds a linear model and its summaries.

    Args:
      units: Logits of an example.
      feature_columns: Dense and categorical columns.
      sparse_combiner: How the weights of an example's ids are combined: "sum", "mean" or "sqrtn".
    """

    def linear_logit_fn(features: Any) -> tf.Tensor:
        if not are_of_v2(feature_columns):
            made: dict[Any, Any] = {}
            logits = v1.feature_column.linear_model(
                features, feature_columns, units, sparse_combiner, cols_to_vars=made
            )
            bias = made.pop("bias")
            summarize_weights(bias, [part for parts in made.values() for part in parts])
            return logits
        layer = LinearLayer(feature_columns, units, sparse_combiner, "linear_model")
        logits = layer(features)
        bias = _parts(layer.bias)
        own = {id(part) for part in bias}
        weights = [part for variable in layer.variables for part in _parts(variable)]
        summarize_weights(bias, [part for part in weights if id(part) not in own])
        return logits

    return linear_logit_fn


def _parts(variable: Any) -> list[Any]:
    """Lists the parts of a variable that a partitioner may have divided."""
    return [variable] if isinstance(variable, tf.Variable) else list(variable)
