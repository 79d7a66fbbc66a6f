"""Common parts of the model_fns of tf.compat.v1.estimator: heads, partitions, logits, training.

They use v1 optimizers. Variables are made with `get_variable` in partitioned scopes, and the
optimizer works inside the model's scope: both are in the slots' names in old checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1
import tf_keras

from tfdist.estimator.canned.dnn import Activation, summarize_layer
from tfdist.estimator.canned.feature_columns import are_of_v2, check_columns
from tfdist.estimator.canned.linear import LinearLayer, summarize_weights
from tfdist.estimator.canned.tower import MakeOptimizer
from tfdist.estimator.heads import BinaryClassHead, MultiClassHead, RegressionHead, checks
from tfdist.estimator.heads.checks import checked_weights
from tfdist.estimator.spec import EstimatorSpec, ModeKeys

_Reduction = v1.losses.Reduction
SUM = _Reduction.SUM

SLICE_BYTES = 64 << 20


class V1Head:
    """A head that also writes the summary 'average_loss', as those of v1 did beside a summed loss.

    Args:
      head: A classifier's or regressor's.
      weight_column: The head's.
    """

    def __init__(self, head: Any, weight_column: Any) -> None:
        self._head = head
        self._weight_column = weight_column
        self.logits_dimension = head.logits_dimension
        self.loss_reduction = head.loss_reduction

    def create_estimator_spec(
        self, features: Any, mode: str, logits: Any, labels: Any, train_op_fn: Any
    ) -> EstimatorSpec:
        """Does what the head does; `train_op_fn` gets the loss."""

        def with_summary(loss: tf.Tensor) -> Any:
            if self.loss_reduction == checks.SUM:
                with v1.name_scope(""):
                    v1.summary.scalar("average_loss", loss / self._sum_of_weights(features, logits))
            return train_op_fn(loss)

        spec: EstimatorSpec = self._head.create_estimator_spec(
            features=features, mode=mode, logits=logits, labels=labels, train_op_fn=with_summary
        )
        return spec

    def _sum_of_weights(self, features: Any, logits: tf.Tensor) -> tf.Tensor:
        is_regression = isinstance(self._head, RegressionHead)
        losses = tf.ones_like(logits if is_regression else logits[..., :1])
        if self._weight_column is None:
            return tf.reduce_sum(losses)
        return tf.reduce_sum(losses * checked_weights(features, self._weight_column, logits))


class _BinaryHead(BinaryClassHead):
    """Measures the area under the precision-recall curve as v1 did, by trapezoids."""

    def create_estimator_spec(
        self, features: Any, mode: str, logits: Any, labels: Any = None, *rest: Any, **more: Any
    ) -> EstimatorSpec:
        spec = super().create_estimator_spec(features, mode, logits, labels, *rest, **more)
        if mode != ModeKeys.EVAL:
            return spec
        numbers, _, weights = self._losses_and_weights(labels, logits, features)
        area = v1.metrics.auc(numbers, spec.predictions["logistic"], weights, curve="PR")
        return spec._replace(eval_metric_ops={**spec.eval_metric_ops, "auc_precision_recall": area})


def classifier_head(
    n_classes: int, weight_column: Any, label_vocabulary: Any, loss_reduction: str
) -> V1Head:
    """Makes the head of a v1 classifier."""
    common = {
        "weight_column": weight_column,
        "label_vocabulary": label_vocabulary,
        "loss_reduction": _as_v2(loss_reduction, weight_column),
    }
    head = _BinaryHead(**common) if n_classes == 2 else MultiClassHead(n_classes, **common)
    return V1Head(head, weight_column)


def regressor_head(label_dimension: int, weight_column: Any, loss_reduction: str) -> V1Head:
    """Makes the head of a v1 regressor."""
    head = RegressionHead(
        label_dimension=label_dimension,
        weight_column=weight_column,
        loss_reduction=_as_v2(loss_reduction, weight_column),
    )
    return V1Head(head, weight_column)


def _as_v2(loss_reduction: str, weight_column: Any) -> str:
    """Translates a `tf.compat.v1.losses.Reduction`; without weights all means are one.

    Raises:
      ValueError: If there is no v2 reduction like it.
    """
    if loss_reduction == SUM:
        return str(checks.SUM)
    if loss_reduction == _Reduction.SUM_OVER_BATCH_SIZE:
        return str(checks.MEAN)
    if loss_reduction in _Reduction.all() and loss_reduction != _Reduction.NONE:
        if weight_column is None:
            return str(checks.MEAN)
        raise ValueError(
            f"loss_reduction {loss_reduction} divides by the weights, which heads cannot do. Use "
            "Reduction.SUM or Reduction.SUM_OVER_BATCH_SIZE, or leave weight_column out."
        )
    raise ValueError(
        f"Invalid loss_reduction: {loss_reduction}. Use tf.compat.v1.losses.Reduction.SUM or "
        "SUM_OVER_BATCH_SIZE."
    )


def partitioner(config: Any, min_slice_bytes: int | None = None) -> Any:
    """Returns what divides variables over parameter servers; here always into one part.

    Args:
      config: The RunConfig.
      min_slice_bytes: The smallest part; None is TensorFlow's default.
    """
    count = getattr(config, "num_ps_replicas", 0) or 0
    if min_slice_bytes is None:
        return v1.min_max_variable_partitioner(max_partitions=count)
    return v1.min_max_variable_partitioner(max_partitions=count, min_slice_size=min_slice_bytes)


def train_together_with_updates(minimize: Callable[[tf.Tensor], Any]) -> Callable[..., Any]:
    """Returns a train_op_fn that trains in the scope 'head' and runs the graph's update ops."""
    with v1.name_scope(None, "head") as scope:
        pass

    def train_op_fn(loss: tf.Tensor) -> tf.Operation:
        with v1.name_scope(scope):
            return tf.group(minimize(loss), *v1.get_collection(v1.GraphKeys.UPDATE_OPS))

    return train_op_fn


def create_spec(
    head: Any, features: Any, labels: Any, mode: str, logits: tf.Tensor, maker: MakeOptimizer
) -> EstimatorSpec:
    """Trains all trainable variables of the graph with one optimizer."""

    def minimize(loss: tf.Tensor) -> Any:
        return maker().minimize(loss, global_step=v1.train.get_global_step())

    spec: EstimatorSpec = head.create_estimator_spec(
        features=features,
        mode=mode,
        labels=labels,
        logits=logits,
        train_op_fn=train_together_with_updates(minimize),
    )
    return spec


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
