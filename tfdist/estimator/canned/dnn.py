"""Deep networks: dense layers over the features."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1
import tf_keras

from tfdist.estimator.canned.feature_columns import check_columns, warn_of_shared
from tfdist.estimator.canned.tower import Logits, Tower, keras_optimizer_maker, make_model_fn
from tfdist.estimator.estimator import Estimator
from tfdist.estimator.heads import RegressionHead, binary_or_multi_class_head, checks
from tfdist.estimator.spec import ModeKeys

Activation = Callable[[tf.Tensor], tf.Tensor] | str | None


def dnn_logits(
    features: dict[str, Any],
    mode: str,
    units: int,
    hidden_units: Sequence[int],
    feature_columns: Sequence[Any],
    activation_fn: Activation,
    dropout: float | None,
    batch_norm: bool,
) -> Logits:
    """Builds a network with the summaries of its layers.

    Variables: dnn/hiddenlayer_<i>/{kernel,bias}, dnn/logits/{kernel,bias}, those of embeddings in
    dnn/input_from_feature_columns/input_layer/<column>/, and of batch normalization in
    dnn/hiddenlayer_<i>/batchnorm_<i>/.

    Args:
      features: Batches by name.
      mode: Dropout and batch normalization train in TRAIN only.
      units: Logits of an example.
      hidden_units: Size of each hidden layer.
      feature_columns: Dense columns of `tf.feature_column`.
      activation_fn: Of the hidden layers; None is the identity.
      dropout: The part of each hidden layer's values that training drops; None drops none.
      batch_norm: Whether batch normalization follows each hidden layer.
    """
    layers = tf_keras.layers
    is_training = mode == ModeKeys.TRAIN
    used: list[Any] = []

    def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
        used.append(layer)
        return layer(*args, **kwargs)

    columns = check_columns(feature_columns)
    # With the slash the scope is "dnn" even if the graph has one of that name already.
    with tf.name_scope("dnn/"):
        name = "input_from_feature_columns/input_layer"
        net = call(layers.DenseFeatures(columns, name=name), features, training=is_training)
        for i, size in enumerate(hidden_units):
            name = f"hiddenlayer_{i}"
            net = call(_dense(size, activation_fn, name), net)
            if dropout is not None and is_training:
                net = call(layers.Dropout(dropout), net, training=True)
            if batch_norm:
                # Not Keras' own momentum of 0.99: that of tf.estimator.
                norm = layers.BatchNormalization(momentum=0.999, name=f"{name}/batchnorm_{i}")
                net = call(norm, net, training=is_training)
            summarize_layer(net, name)
        values = call(_dense(units, None, "logits"), net)
        summarize_layer(values, "logits")
    if is_training:
        warn_of_shared(columns)
    return Logits(
        values=values,
        variables=[variable for layer in used for variable in layer.trainable_variables],
        updates=[update for layer in used for update in layer.updates],
    )


def _dense(size: int, activation_fn: Activation, name: str) -> Any:
    return tf_keras.layers.Dense(
        size,
        activation=activation_fn,
        kernel_initializer=v1.glorot_uniform_initializer(),
        name=name,
    )


def summarize_layer(values: tf.Tensor, tag: str) -> None:
    """Writes '<tag>/fraction_of_zero_values' and the histogram '<tag>/activation'."""
    v1.summary.scalar(f"{tag}/fraction_of_zero_values", tf.math.zero_fraction(values))
    v1.summary.histogram(f"{tag}/activation", values)


def dnn_tower(
    hidden_units: Sequence[int],
    feature_columns: Sequence[Any],
    optimizer: Any,
    activation_fn: Activation,
    dropout: float | None,
    batch_norm: bool,
    learning_rate: float | None = None,
) -> Tower:
    """Returns a network with its optimizer.

    Args:
      hidden_units: As in `dnn_logits`.
      feature_columns: As in `dnn_logits`.
      optimizer: As in `keras_optimizer_maker`.
      activation_fn: As in `dnn_logits`.
      dropout: As in `dnn_logits`.
      batch_norm: As in `dnn_logits`.
      learning_rate: For an optimizer given by name; None is Keras' default.
    """

    def build(features: dict[str, Any], mode: str, units: int) -> Logits:
        return dnn_logits(
            features, mode, units, hidden_units, feature_columns, activation_fn, dropout, batch_norm
        )

    return Tower(build=build, make_optimizer=keras_optimizer_maker(optimizer, learning_rate))


class DNNEstimator(Estimator):
    """A deep network with a head of the user's.

    Args:
      head: A head of `tfdist.estimator`.
      hidden_units: Size of each hidden layer, from the features on.
      feature_columns: Dense columns of `tf.feature_column`; wrap categorical ones in
        `embedding_column` or `indicator_column`.
      model_dir: Folder of checkpoints and event files.
      optimizer: A name ("Adagrad", "Adam", "Ftrl", "RMSProp", "SGD"), a Keras or v1 optimizer, or a
        function that returns one.
      activation_fn: Of the hidden layers.
      dropout: The part of each hidden layer's values that training drops.
      config: A `RunConfig`.
      warm_start_from: A path or `WarmStartSettings`.
      batch_norm: Whether batch normalization follows each hidden layer.
    """

    def __init__(
        self,
        head: Any,
        hidden_units: Sequence[int],
        feature_columns: Any,
        model_dir: Any = None,
        optimizer: Any = "Adagrad",
        activation_fn: Activation = tf.nn.relu,
        dropout: float | None = None,
        config: Any = None,
        warm_start_from: Any = None,
        batch_norm: bool = False,
    ) -> None:
        tower = dnn_tower(
            hidden_units,
            tuple(feature_columns or ()),
            optimizer,
            activation_fn,
            dropout,
            batch_norm,
        )
        super().__init__(
            make_model_fn(head, [tower]),
            model_dir=model_dir,
            config=config,
            warm_start_from=warm_start_from,
        )


class DNNClassifier(DNNEstimator):
    """A deep network that tells two or more classes apart; softmax or sigmoid cross entropy.

    Args:
      hidden_units: As in `DNNEstimator`, and so are the arguments that are not listed here.
      n_classes: Number of classes; labels are integers below it unless there is a vocabulary.
      weight_column: Name of a feature, or numeric column, that weighs each example's loss.
      label_vocabulary: The labels, if they are strings.
      loss_reduction: A `tf.losses.Reduction` other than NONE.
    """

    def __init__(
        self,
        hidden_units: Sequence[int],
        feature_columns: Any,
        model_dir: Any = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Any = None,
        optimizer: Any = "Adagrad",
        activation_fn: Activation = tf.nn.relu,
        dropout: float | None = None,
        config: Any = None,
        warm_start_from: Any = None,
        loss_reduction: str = checks.MEAN,
        batch_norm: bool = False,
    ) -> None:
        head = binary_or_multi_class_head(
            n_classes,
            weight_column=weight_column,
            label_vocabulary=label_vocabulary,
            loss_reduction=loss_reduction,
        )
        super().__init__(
            head,
            hidden_units,
            feature_columns,
            model_dir=model_dir,
            optimizer=optimizer,
            activation_fn=activation_fn,
            dropout=dropout,
            config=config,
            warm_start_from=warm_start_from,
            batch_norm=batch_norm,
        )


class DNNRegressor(DNNEstimator):
    """A deep network of numbers; squared error.

    Args:
      hidden_units: As in `DNNEstimator`, and so are the arguments that are not listed here.
      label_dimension: Numbers to predict for an example.
      weight_column: Name of a feature, or numeric column, that weighs each example's loss.
      loss_reduction: A `tf.losses.Reduction` other than NONE.
    """

    def __init__(
        self,
        hidden_units: Sequence[int],
        feature_columns: Any,
        model_dir: Any = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        optimizer: Any = "Adagrad",
        activation_fn: Activation = tf.nn.relu,
        dropout: float | None = None,
        config: Any = None,
        warm_start_from: Any = None,
        loss_reduction: str = checks.MEAN,
        batch_norm: bool = False,
    ) -> None:
        head = RegressionHead(
            label_dimension=label_dimension,
            weight_column=weight_column,
            loss_reduction=loss_reduction,
        )
        super().__init__(
            head,
            hidden_units,
            feature_columns,
            model_dir=model_dir,
            optimizer=optimizer,
            activation_fn=activation_fn,
            dropout=dropout,
            config=config,
            warm_start_from=warm_start_from,
            batch_norm=batch_norm,
        )
