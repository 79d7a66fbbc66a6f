"""Linear models with a bias and a weight for each number or id of each feature."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1
import tf_keras

from tfdist.estimator.canned.layers import Layers, check_columns, summarize_layer
from tfdist.estimator.canned.tower import CannedEstimator, Tower
from tfdist.estimator.checkpoints.warm_start import WarmStartFrom
from tfdist.estimator.config.run_config import RunConfig
from tfdist.estimator.heads import checks
from tfdist.estimator.heads.classification import classifier_head
from tfdist.estimator.heads.regression import RegressionHead
from tfdist.strategies.divided.variable import own_rows
from tfdist.strategies.private_tensorflow import (
    ColumnVariables,
    TransformedFeatures,
    is_dense_column,
    is_v2_column,
)


class LinearLayer(tf_keras.layers.Layer):  # type: ignore[misc]
    """A layer that returns the bias plus each column's values times its weights, [batch, units].

    The variables are `<name>/<column>/weights`, float32 [ids or numbers, units], and
    `<name>/bias_weights`, float32 [units]. All are initialized with zeros. A partitioned variable
    scope may divide them. Columns are dense or categorical.
    """

    def __init__(
        self, feature_columns: Sequence[Any], units: int, sparse_combiner: str, name: str
    ) -> None:
        super().__init__(name=name)
        self._columns = check_columns(feature_columns)
        for column in self._columns:
            if not is_dense_column(column) and not _is_categorical(column):
                raise ValueError(
                    "Items of feature_columns must be either a DenseColumn or CategoricalColumn. "
                    f"Given: {column}"
                )
        self._units = units
        self._sparse_combiner = sparse_combiner
        self._state = ColumnVariables(self, trainable=True)
        self.bias: Any = None

    def build(self, _: Any) -> None:
        """Makes the variables in variable scopes, with the names of tf.estimator's checkpoints."""
        with v1.variable_scope(self.name, auxiliary_name_scope=False):
            for column in self._columns:
                with v1.variable_scope(_scope_name(column), auxiliary_name_scope=False):
                    column.create_state(self._state)
                    is_ids = _is_categorical(column)
                    rows = column.num_buckets if is_ids else column.variable_shape.num_elements()
                    shape = (rows, self._units)
                    self._state.create_variable(
                        column, "weights", shape, tf.float32, initializer=v1.zeros_initializer()
                    )
            self.bias = self.add_weight(
                "bias_weights",
                [self._units],
                tf.float32,
                v1.zeros_initializer(),
                use_resource=True,
                getter=v1.get_variable,
            )
        super().build(None)

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def call(self, features: dict[str, Any]) -> tf.Tensor:
        """Returns the logits of a batch, float32 [batch, units]."""
        cache = TransformedFeatures(features)
        # In tf.estimator the layer is inside two models of this name, and op names begin with both.
        with tf.name_scope(self.name), tf.name_scope(self.name):
            sums = []
            for column in self._columns:
                with tf.name_scope(_scope_name(column)):
                    sums.append(self._weighted_sum(column, cache))
            total = tf.add_n(sums, name="weighted_sum_no_bias")  # [batch, units]
            return tf.nn.bias_add(total, self.bias, name="weighted_sum")  # [batch, units]

    def _weighted_sum(self, column: Any, cache: Any) -> tf.Tensor:
        weights = self._state.get_variable(column, "weights")  # [ids or numbers, units]
        if not _is_categorical(column):
            dense = column.get_dense_tensor(cache, self._state)
            # [batch, numbers]
            rows = tf.reshape(dense, [v1.shape(dense)[0], column.variable_shape.num_elements()])
            return tf.matmul(rows, weights, name="weighted_sum")  # [batch, units]
        pair = column.get_sparse_tensors(cache, self._state)
        return v1.nn.safe_embedding_lookup_sparse(
            weights,
            _ids_in_rows(pair.id_tensor),
            sparse_weights=None if pair.weight_tensor is None else _ids_in_rows(pair.weight_tensor),
            combiner=self._sparse_combiner,
            name="weighted_sum",
        )


def _ids_in_rows(values: tf.SparseTensor) -> tf.SparseTensor:
    """Reshapes `values` to [batch, ids per example]."""
    return tf.sparse.reshape(values, [v1.shape(values)[0], -1])


def _is_categorical(column: Any) -> bool:
    """Returns True if a column returns ids; a linear model has weights for each id."""
    return hasattr(column, "num_buckets") and hasattr(column, "get_sparse_tensors")


def _scope_name(column: Any) -> str:
    """Returns the column's part of a variable's name."""
    return re.sub(r"[^A-Za-z0-9_.\-]", "_", column.name)


def linear_tower(
    feature_columns: Any, optimizer: Any, sparse_combiner: str, is_part: bool = False
) -> Tower:
    """Returns a tower of a linear model over dense and categorical columns, with its summaries.

    These are 'bias' and 'fraction_of_zero_weights', for a part (`Tower.is_part`) also the logits'.
    The optimizer None is Ftrl with a learning rate that decreases with the number of columns.
    """
    columns = tuple(feature_columns or ())

    def build(layers: Layers, features: dict[str, Any], mode: str, units: int) -> tf.Tensor:
        if layers.takes_v1_columns and not all(map(is_v2_column, columns)):
            made: dict[Any, Any] = {}
            logits = v1.feature_column.linear_model(
                features, columns, units, sparse_combiner, cols_to_vars=made
            )
            _summarize_weights(made.pop("bias"), made.values())
        else:
            layer = LinearLayer(columns, units, sparse_combiner, layers.linear_name)
            logits = layers.call(layer, features)
            _summarize_weights(layer.bias, layer.variables)
        if is_part:
            summarize_layer(logits, "linear")
        return logits  # [batch, units]

    falling = 1.0 / math.sqrt(max(len(columns), 1))
    if is_part:
        rate = min(0.005, falling)
    elif optimizer is None:
        optimizer, rate = "Ftrl", min(0.2, falling)
    else:
        rate = 0.2
    return Tower("linear", build, optimizer, rate, is_part)


def _summarize_weights(bias: Any, variables: Iterable[Any]) -> None:
    """Writes 'bias' (a scalar if it is one number) and 'fraction_of_zero_weights'.

    Variables may be in parts, and the bias may be among `variables`. Of a table that is divided
    between workers, the rows of the worker that writes count.
    """
    with own_rows():
        _summarize_parts(_parts(bias), variables)


def _summarize_parts(parts: Sequence[tf.Variable], variables: Iterable[Any]) -> None:
    weights = [x for variable in variables for x in _parts(variable) if not _is_in(x, parts)]
    if len(parts) == 1 and parts[0].shape.num_elements() == 1:
        v1.summary.scalar("bias", parts[0][0])
    else:
        v1.summary.histogram("bias", tf.concat([tf.convert_to_tensor(x) for x in parts], 0))
    with tf.name_scope("zero_fraction"):
        zeros = [tf.reduce_sum(tf.cast(tf.equal(x, 0.0), tf.float32)) for x in weights]
        fraction = tf.add_n(zeros) / float(sum(x.shape.num_elements() for x in weights))
    v1.summary.scalar("fraction_of_zero_weights", fraction)


def _parts(variable: Any) -> list[Any]:
    """Returns the parts of a variable, which a partitioner may have divided."""
    return [variable] if isinstance(variable, tf.Variable) else list(variable)


def _is_in(variable: tf.Variable, variables: Sequence[tf.Variable]) -> bool:
    return any(variable is other for other in variables)  # `==` would build an op.


class LinearEstimator(CannedEstimator):
    """A linear model with a head given by the user.

    Args:
      head: A head of `tfdist.estimator`.
      feature_columns: Columns of `tf.feature_column`, dense or categorical.
      model_dir: Folder of checkpoints and event files.
      optimizer: A name ("Adagrad", "Adam", "Ftrl", "RMSProp", "SGD"; learning rate 0.2), a Keras
        or v1 optimizer, or a function that returns one. None is Ftrl with a learning rate of 0.2,
        or one over the square root of the number of columns if that is smaller.
      config: A `RunConfig`.
      sparse_combiner: Combination of the weights of an example's ids: "sum", "mean" or "sqrtn".
      warm_start_from: A path or `WarmStartSettings`.
    """

    def __init__(
        self,
        head: Any,
        feature_columns: Any,
        model_dir: str | os.PathLike[str] | None = None,
        optimizer: Any = "Ftrl",
        config: RunConfig | None = None,
        sparse_combiner: str = "sum",
        warm_start_from: WarmStartFrom = None,
    ) -> None:
        tower = linear_tower(feature_columns, optimizer, sparse_combiner)
        super().__init__(head, [tower], model_dir, config, warm_start_from)


class LinearClassifier(CannedEstimator):
    """A linear model that classifies: softmax cross entropy, or sigmoid for two classes.

    Args:
      feature_columns: Columns of `tf.feature_column`, dense or categorical.
      model_dir: Folder of checkpoints and event files.
      n_classes: Number of classes. Without a vocabulary, labels are integers in [0, n_classes).
      weight_column: Name of a feature, or a numeric column, with the weight of each example's loss.
      label_vocabulary: List of the labels, if they are strings.
      optimizer: A name ("Adagrad", "Adam", "Ftrl", "RMSProp", "SGD"; learning rate 0.2), a Keras or
        v1 optimizer, or a function that returns one. None is Ftrl with a learning rate of 0.2, or
        one over the square root of the number of columns if that is smaller.
      config: A `RunConfig`.
      warm_start_from: A path or `WarmStartSettings`.
      loss_reduction: A `tf.losses.Reduction` other than NONE.
      sparse_combiner: Combination of the weights of an example's ids: "sum", "mean" or "sqrtn".
    """

    def __init__(
        self,
        feature_columns: Any,
        model_dir: str | os.PathLike[str] | None = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Sequence[str] | None = None,
        optimizer: Any = "Ftrl",
        config: RunConfig | None = None,
        warm_start_from: WarmStartFrom = None,
        loss_reduction: str = checks.MEAN,
        sparse_combiner: str = "sum",
    ) -> None:
        head = classifier_head(n_classes, weight_column, label_vocabulary, loss_reduction)
        tower = linear_tower(feature_columns, optimizer, sparse_combiner)
        super().__init__(head, [tower], model_dir, config, warm_start_from)


class LinearRegressor(CannedEstimator):
    """A linear model for regression, trained with squared error.

    Args:
      feature_columns: Columns of `tf.feature_column`, dense or categorical.
      model_dir: Folder of checkpoints and event files.
      label_dimension: Number of values to predict for each example.
      weight_column: Name of a feature, or a numeric column, with the weight of each example's loss.
      optimizer: A name ("Adagrad", "Adam", "Ftrl", "RMSProp", "SGD"; learning rate 0.2), a Keras or
        v1 optimizer, or a function that returns one. None is Ftrl with a learning rate of 0.2, or
        one over the square root of the number of columns if that is smaller.
      config: A `RunConfig`.
      warm_start_from: A path or `WarmStartSettings`.
      loss_reduction: A `tf.losses.Reduction` other than NONE.
      sparse_combiner: Combination of the weights of an example's ids: "sum", "mean" or "sqrtn".
    """

    def __init__(
        self,
        feature_columns: Any,
        model_dir: str | os.PathLike[str] | None = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        optimizer: Any = "Ftrl",
        config: RunConfig | None = None,
        warm_start_from: WarmStartFrom = None,
        loss_reduction: str = checks.MEAN,
        sparse_combiner: str = "sum",
    ) -> None:
        head = RegressionHead(label_dimension, weight_column, loss_reduction)
        tower = linear_tower(feature_columns, optimizer, sparse_combiner)
        super().__init__(head, [tower], model_dir, config, warm_start_from)
