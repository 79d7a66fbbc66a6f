"""Deep neural networks of dense layers over the features."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.estimator.canned.layers import Activation, Layers, summarize_layer
from tfdist.estimator.canned.tower import CannedEstimator, Tower
from tfdist.estimator.checkpoints.warm_start import WarmStartFrom
from tfdist.estimator.config.run_config import RunConfig
from tfdist.estimator.heads import checks
from tfdist.estimator.heads.classification import classifier_head
from tfdist.estimator.heads.regression import RegressionHead
from tfdist.estimator.spec import ModeKeys


def dnn_tower(
    feature_columns: Any,
    optimizer: Any,
    hidden_units: Sequence[int] | None,
    activation_fn: Activation,
    dropout: float | None,
    batch_norm: bool,
    is_part: bool = False,
) -> Tower:
    """Returns a tower of a deep network over dense columns, with the summaries of its layers.

    The arguments are as in `DNNEstimator`; `hidden_units` may be None.

    The variables are dnn/hiddenlayer_<i>/{kernel,bias} and dnn/logits/{kernel,bias}. Variables of
    embeddings are in dnn/input_from_feature_columns/input_layer/<column>/, and those of batch
    normalization in dnn/hiddenlayer_<i>/batchnorm_<i>/. Dropout and batch normalization are in
    training mode only in TRAIN.

    A part (`Tower.is_part`) must have hidden layers. The learning rate of its optimizer, if given
    by name, is 0.001.
    """
    columns = tuple(feature_columns or ())

    def build(layers: Layers, features: dict[str, Any], mode: str, units: int) -> tf.Tensor:
        if is_part and not hidden_units:
            raise ValueError(
                "dnn_hidden_units must be defined when dnn_feature_columns is specified. Give the "
                "size of each hidden layer, such as [64, 32]."
            )
        is_training = mode == ModeKeys.TRAIN
        net = layers.input(features, columns, is_training)  # [batch, sum of the columns' sizes]
        for i, size in enumerate(hidden_units or ()):
            name = f"hiddenlayer_{i}"
            net = layers.dense(net, size, activation_fn, name)  # [batch, size]
            if dropout is not None and is_training:
                net = layers.dropout(net, dropout)
            if batch_norm:
                net = layers.batch_norm(net, f"{name}/batchnorm_{i}", is_training)
            summarize_layer(net, layers.tag(name))
        logits = layers.dense(net, units, None, "logits")  # [batch, units]
        summarize_layer(logits, layers.tag("logits"))
        return logits

    return Tower("dnn", build, optimizer, 0.001 if is_part else None, is_part)


class DNNEstimator(CannedEstimator):
    """A deep network with a head given by the user.

    Args:
      head: A head of `tfdist.estimator`.
      hidden_units: Size of each hidden layer, starting at the features.
      feature_columns: Dense columns of `tf.feature_column`. Wrap categorical columns in
        `embedding_column` or `indicator_column`.
      model_dir: Folder of checkpoints and event files.
      optimizer: A name ("Adagrad", "Adam", "Ftrl", "RMSProp", "SGD"), a Keras or v1 optimizer, or a
        function that returns one.
      activation_fn: Activation function of the hidden layers.
      dropout: The fraction of each hidden layer's values that training drops.
      config: A `RunConfig`.
      warm_start_from: A path or `WarmStartSettings`.
      batch_norm: Whether batch normalization follows each hidden layer.
    """

    def __init__(
        self,
        head: Any,
        hidden_units: Sequence[int],
        feature_columns: Any,
        model_dir: str | os.PathLike[str] | None = None,
        optimizer: Any = "Adagrad",
        activation_fn: Activation = tf.nn.relu,
        dropout: float | None = None,
        config: RunConfig | None = None,
        warm_start_from: WarmStartFrom = None,
        batch_norm: bool = False,
    ) -> None:
        tower = dnn_tower(
            feature_columns, optimizer, hidden_units, activation_fn, dropout, batch_norm
        )
        super().__init__(head, [tower], model_dir, config, warm_start_from)


class DNNClassifier(CannedEstimator):
    """A deep network that classifies: softmax cross entropy, or sigmoid for two classes.

    Args:
      hidden_units: Size of each hidden layer, starting at the features.
      feature_columns: Dense columns of `tf.feature_column`. Wrap categorical columns in
        `embedding_column` or `indicator_column`.
      model_dir: Folder of checkpoints and event files.
      n_classes: Number of classes. Without a vocabulary, labels are integers in [0, n_classes).
      weight_column: Name of a feature, or a numeric column, with the weight of each example's loss.
      label_vocabulary: List of the labels, if they are strings.
      optimizer: A name ("Adagrad", "Adam", "Ftrl", "RMSProp", "SGD"), a Keras or v1 optimizer, or a
        function that returns one.
      activation_fn: Activation function of the hidden layers.
      dropout: The fraction of each hidden layer's values that training drops.
      config: A `RunConfig`.
      warm_start_from: A path or `WarmStartSettings`.
      loss_reduction: A `tf.losses.Reduction` other than NONE.
      batch_norm: Whether batch normalization follows each hidden layer.
    """

    def __init__(
        self,
        hidden_units: Sequence[int],
        feature_columns: Any,
        model_dir: str | os.PathLike[str] | None = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Sequence[str] | None = None,
        optimizer: Any = "Adagrad",
        activation_fn: Activation = tf.nn.relu,
        dropout: float | None = None,
        config: RunConfig | None = None,
        warm_start_from: WarmStartFrom = None,
        loss_reduction: str = checks.MEAN,
        batch_norm: bool = False,
    ) -> None:
        head = classifier_head(n_classes, weight_column, label_vocabulary, loss_reduction)
        tower = dnn_tower(
            feature_columns, optimizer, hidden_units, activation_fn, dropout, batch_norm
        )
        super().__init__(head, [tower], model_dir, config, warm_start_from)


class DNNRegressor(CannedEstimator):
    """A deep network for regression, trained with squared error.

    Args:
      hidden_units: Size of each hidden layer, starting at the features.
      feature_columns: Dense columns of `tf.feature_column`. Wrap categorical columns in
        `embedding_column` or `indicator_column`.
      model_dir: Folder of checkpoints and event files.
      label_dimension: Number of values to predict for each example.
      weight_column: Name of a feature, or a numeric column, with the weight of each example's loss.
      optimizer: A name ("Adagrad", "Adam", "Ftrl", "RMSProp", "SGD"), a Keras or v1 optimizer, or a
        function that returns one.
      activation_fn: Activation function of the hidden layers.
      dropout: The fraction of each hidden layer's values that training drops.
      config: A `RunConfig`.
      warm_start_from: A path or `WarmStartSettings`.
      loss_reduction: A `tf.losses.Reduction` other than NONE.
      batch_norm: Whether batch normalization follows each hidden layer.
    """

    def __init__(
        self,
        hidden_units: Sequence[int],
        feature_columns: Any,
        model_dir: str | os.PathLike[str] | None = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        optimizer: Any = "Adagrad",
        activation_fn: Activation = tf.nn.relu,
        dropout: float | None = None,
        config: RunConfig | None = None,
        warm_start_from: WarmStartFrom = None,
        loss_reduction: str = checks.MEAN,
        batch_norm: bool = False,
    ) -> None:
        head = RegressionHead(label_dimension, weight_column, loss_reduction)
        tower = dnn_tower(
            feature_columns, optimizer, hidden_units, activation_fn, dropout, batch_norm
        )
        super().__init__(head, [tower], model_dir, config, warm_start_from)
