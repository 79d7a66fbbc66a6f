"""Linear models: a weight for each number or id of each feature, and a bias."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1
import tf_keras

from tfdist.estimator.canned.feature_columns import (
    check_columns,
    is_categorical,
    is_dense,
    scope_name,
)
from tfdist.estimator.canned.tower import Logits, Tower, keras_optimizer_maker, make_model_fn
from tfdist.estimator.estimator import Estimator
from tfdist.estimator.heads import RegressionHead, binary_or_multi_class_head, checks

LEARNING_RATE = 0.2


class LinearLayer(tf_keras.layers.Layer):  # type: ignore[misc]
    """Logits [batch_size, units]: the bias and, for each column, its values times its weights.

    The variables are `<name>/<column>/weights`, float32 [ids or numbers, units], and
    `<name>/bias_weights`, float32 [units]; all start at zero.

    Args:
      feature_columns: Dense and categorical columns.
      units: Logits of an example.
      sparse_combiner: How the weights of an example's ids are combined: "sum", "mean" or "sqrtn".
      name: Where the variables are.
    """

    def __init__(
        self, feature_columns: Sequence[Any], units: int, sparse_combiner: str, name: str
    ) -> None:
        super().__init__(name=name)
        self._columns = check_columns(feature_columns)
        for column in self._columns:
            if not is_dense(column) and not is_categorical(column):
                raise ValueError(
                    "Items of feature_columns must be either a DenseColumn or CategoricalColumn. "
                    f"Given: {column}"
                )
        self._units = units
        self._sparse_combiner = sparse_combiner
        self._state = tf.__internal__.feature_column.StateManager(self, trainable=True)
        self.bias: Any = None

    def build(self, _: Any) -> None:
        """Makes the variables, named by variable scopes as in tf.estimator's checkpoints."""
        with v1.variable_scope(self.name, auxiliary_name_scope=False):
            for column in self._columns:
                with v1.variable_scope(scope_name(column), auxiliary_name_scope=False):
                    column.create_state(self._state)
                    is_ids = is_categorical(column)
                    rows = column.num_buckets if is_ids else column.variable_shape.num_elements()
                    self._state.create_variable(
                        column,
                        name="weights",
                        dtype=tf.float32,
                        shape=(rows, self._units),
                        initializer=v1.zeros_initializer(),
                        trainable=True,
                    )
            self.bias = self.add_weight(
                name="bias_weights",
                dtype=tf.float32,
                shape=[self._units],
                initializer=v1.zeros_initializer(),
                trainable=True,
                use_resource=True,
                getter=v1.get_variable,
            )
        super().build(None)

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def call(self, features: dict[str, Any]) -> tf.Tensor:
        """Returns the logits of a batch."""
        cache = tf.__internal__.feature_column.FeatureTransformationCache(features)
        sums = []
        for column in self._columns:
            with tf.name_scope(scope_name(column)):
                sums.append(self._weighted_sum(column, cache))
        total = tf.add_n(sums, name="weighted_sum_no_bias")
        return tf.nn.bias_add(total, self.bias, name="weighted_sum")

    def _weighted_sum(self, column: Any, cache: Any) -> tf.Tensor:
        weights = self._state.get_variable(column, "weights")
        if not is_categorical(column):
            dense = column.get_dense_tensor(cache, self._state)
            rows = tf.reshape(dense, [v1.shape(dense)[0], column.variable_shape.num_elements()])
            return tf.matmul(rows, weights, name="weighted_sum")
        pair = column.get_sparse_tensors(cache, self._state)
        return v1.nn.safe_embedding_lookup_sparse(
            weights,
            _ids_in_rows(pair.id_tensor),
            sparse_weights=None if pair.weight_tensor is None else _ids_in_rows(pair.weight_tensor),
            combiner=self._sparse_combiner,
            name="weighted_sum",
        )


def _ids_in_rows(values: tf.SparseTensor) -> tf.SparseTensor:
    """Reshapes to [batch_size, ids of an example]."""
    return tf.sparse.reshape(values, [v1.shape(values)[0], -1])


def linear_logits(
    features: dict[str, Any],
    units: int,
    feature_columns: Sequence[Any],
    sparse_combiner: str,
    name: str = "linear/linear_model",
) -> Logits:
    """Builds a linear model and its summaries 'bias' and 'fraction_of_zero_weights'.

    Args:
      features: Batches by name.
      units: Logits of an example.
      feature_columns: Dense and categorical columns of `tf.feature_column`.
      sparse_combiner: "sum", "mean" or "sqrtn".
      name: Where the variables are.
    """
    layer = LinearLayer(feature_columns, units, sparse_combiner, name)
    values = layer(features)
    summarize_weights([layer.bias], [x for x in layer.variables if x is not layer.bias])
    return Logits(values=values, variables=layer.trainable_variables)


def summarize_weights(bias: Sequence[Any], weights: Sequence[Any]) -> None:
    """Writes 'bias' (a scalar if it is one number) and 'fraction_of_zero_weights'.

    Args:
      bias: The bias, in one or several parts.
      weights: All other variables.
    """
    if len(bias) == 1 and bias[0].shape.num_elements() == 1:
        v1.summary.scalar("bias", bias[0][0])
    else:
        v1.summary.histogram("bias", tf.concat([tf.convert_to_tensor(x) for x in bias], 0))
    with tf.name_scope("zero_fraction"):
        zeros = [tf.reduce_sum(tf.cast(tf.equal(x, 0.0), tf.float32)) for x in weights]
        fraction = tf.add_n(zeros) / float(sum(x.shape.num_elements() for x in weights))
    v1.summary.scalar("fraction_of_zero_weights", fraction)


def linear_tower(
    feature_columns: Sequence[Any],
    optimizer: Any,
    sparse_combiner: str,
    learning_rate: float,
) -> Tower:
    """Returns a linear model with its optimizer.

    Args:
      feature_columns: Dense and categorical columns of `tf.feature_column`.
      optimizer: As in `keras_optimizer_maker`.
      sparse_combiner: "sum", "mean" or "sqrtn".
      learning_rate: For an optimizer given by name.
    """

    def build(features: dict[str, Any], mode: str, units: int) -> Logits:
        return linear_logits(features, units, feature_columns, sparse_combiner)

    return Tower(build=build, make_optimizer=keras_optimizer_maker(optimizer, learning_rate))


class LinearEstimator(Estimator):
    """A linear model with a head of the user's.

    Args:
      head: A head of `tfdist.estimator`.
      feature_columns: Columns of `tf.feature_column`, dense or categorical.
      model_dir: Folder of checkpoints and event files.
      optimizer: A name ("Adagrad", "Adam", "Ftrl", "RMSProp", "SGD"; learning rate 0.2), a Keras
        or v1 optimizer, or a function that returns one. None is Ftrl with a learning rate of 0.2,
        or one over the square root of the number of columns if that is smaller.
      config: A `RunConfig`.
      sparse_combiner: How the weights of an example's ids are combined: "sum", "mean" or "sqrtn".
      warm_start_from: A path or `WarmStartSettings`.
    """

    def __init__(
        self,
        head: Any,
        feature_columns: Any,
        model_dir: Any = None,
        optimizer: Any = "Ftrl",
        config: Any = None,
        sparse_combiner: str = "sum",
        warm_start_from: Any = None,
    ) -> None:
        columns = tuple(feature_columns or ())
        rate = LEARNING_RATE
        if optimizer is None:
            optimizer, rate = "Ftrl", min(rate, 1.0 / math.sqrt(max(len(columns), 1)))
        super().__init__(
            make_model_fn(head, [linear_tower(columns, optimizer, sparse_combiner, rate)]),
            model_dir=model_dir,
            config=config,
            warm_start_from=warm_start_from,
        )


class LinearClassifier(LinearEstimator):
    """A linear model that tells two or more classes apart; softmax or sigmoid cross entropy.

    Args:
      feature_columns: As in `LinearEstimator`, and so are the arguments that are not listed here.
      n_classes: Number of classes; labels are integers below it unless there is a vocabulary.
      weight_column: Name of a feature, or numeric column, that weighs each example's loss.
      label_vocabulary: The labels, if they are strings.
      loss_reduction: A `tf.losses.Reduction` other than NONE.
    """

    def __init__(
        self,
        feature_columns: Any,
        model_dir: Any = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Any = None,
        optimizer: Any = "Ftrl",
        config: Any = None,
        warm_start_from: Any = None,
        loss_reduction: str = checks.MEAN,
        sparse_combiner: str = "sum",
    ) -> None:
        head = binary_or_multi_class_head(
            n_classes,
            weight_column=weight_column,
            label_vocabulary=label_vocabulary,
            loss_reduction=loss_reduction,
        )
        super().__init__(
            head,
            feature_columns,
            model_dir=model_dir,
            optimizer=optimizer,
            config=config,
            sparse_combiner=sparse_combiner,
            warm_start_from=warm_start_from,
        )


class LinearRegressor(LinearEstimator):
    """A linear model of numbers; squared error.

    Args:
      feature_columns: As in `LinearEstimator`, and so are the arguments that are not listed here.
      label_dimension: Numbers to predict for an example.
      weight_column: Name of a feature, or numeric column, that weighs each example's loss.
      loss_reduction: A `tf.losses.Reduction` other than NONE.
    """

    def __init__(
        self,
        feature_columns: Any,
        model_dir: Any = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        optimizer: Any = "Ftrl",
        config: Any = None,
        warm_start_from: Any = None,
        loss_reduction: str = checks.MEAN,
        sparse_combiner: str = "sum",
    ) -> None:
        head = RegressionHead(
            label_dimension=label_dimension,
            weight_column=weight_column,
            loss_reduction=loss_reduction,
        )
        super().__init__(
            head,
            feature_columns,
            model_dir=model_dir,
            optimizer=optimizer,
            config=config,
            sparse_combiner=sparse_combiner,
            warm_start_from=warm_start_from,
        )
