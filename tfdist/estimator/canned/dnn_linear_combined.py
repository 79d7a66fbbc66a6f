"""Models that add the logits of a linear model and a deep network, each with its own optimizer."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.estimator.canned.dnn import dnn_tower
from tfdist.estimator.canned.layers import Activation
from tfdist.estimator.canned.linear import linear_tower
from tfdist.estimator.canned.tower import CannedEstimator, Tower
from tfdist.estimator.checkpoints.warm_start import WarmStartFrom
from tfdist.estimator.config.run_config import RunConfig
from tfdist.estimator.heads import checks
from tfdist.estimator.heads.classification import classifier_head
from tfdist.estimator.heads.regression import RegressionHead


def dnn_and_linear(
    dnn: tuple[Any, Any, Sequence[int] | None, Activation, float | None, bool],
    linear: tuple[Any, Any, str],
) -> list[Tower]:
    """Returns the towers of the parts that have feature columns; ValueError if neither has.

    `dnn` is the arguments of `dnn_tower`, and `linear` those of `linear_tower`.
    """
    towers = [dnn_tower(*dnn, is_part=True)] if dnn[0] else []
    if linear[0]:
        towers.append(linear_tower(*linear, is_part=True))
    if not towers:
        raise ValueError(
            "Either linear_feature_columns or dnn_feature_columns must be defined. Give one of "
            "them or both."
        )
    return towers


class DNNLinearCombinedEstimator(CannedEstimator):
    """A linear model and a deep network with added logits, with a head given by the user.

    Args:
      head: A head of `tfdist.estimator`.
      model_dir: Folder of checkpoints and event files.
      linear_feature_columns: Columns of `tf.feature_column` for the linear model. None leaves the
        linear model out.
      linear_optimizer: A name ("Adagrad", "Adam", "Ftrl", "RMSProp", "SGD"; learning rate 0.005, or
        one over the square root of the number of columns if that is smaller), a Keras or v1
        optimizer, or a function that returns one.
      dnn_feature_columns: Dense columns for the network. None leaves the network out.
      dnn_optimizer: The optimizer of the network, in the same forms. One given by name has a
        learning rate of 0.001.
      dnn_hidden_units: Size of each hidden layer, starting at the features.
      dnn_activation_fn: Activation function of the hidden layers.
      dnn_dropout: The fraction of each hidden layer's values that training drops.
      config: A `RunConfig`.
      batch_norm: Whether batch normalization follows each hidden layer.
      linear_sparse_combiner: Combination of the weights of an example's ids: "sum", "mean" or
        "sqrtn".
    """

    def __init__(
        self,
        head: Any,
        model_dir: str | os.PathLike[str] | None = None,
        linear_feature_columns: Any = None,
        linear_optimizer: Any = "Ftrl",
        dnn_feature_columns: Any = None,
        dnn_optimizer: Any = "Adagrad",
        dnn_hidden_units: Sequence[int] | None = None,
        dnn_activation_fn: Activation = tf.nn.relu,
        dnn_dropout: float | None = None,
        config: RunConfig | None = None,
        batch_norm: bool = False,
        linear_sparse_combiner: str = "sum",
    ) -> None:
        network = (dnn_hidden_units, dnn_activation_fn, dnn_dropout, batch_norm)
        linear = (linear_feature_columns, linear_optimizer, linear_sparse_combiner)
        towers = dnn_and_linear((dnn_feature_columns, dnn_optimizer, *network), linear)
        super().__init__(head, towers, model_dir, config)


class DNNLinearCombinedClassifier(CannedEstimator):
    """A classifier for two or more classes of a linear model and a deep network.

    The arguments are as in `DNNLinearCombinedEstimator` and, for the head, of
    `BaselineClassifier`; `warm_start_from` is a path or `WarmStartSettings`.

    Args:
      model_dir: Folder of checkpoints and event files.
      linear_feature_columns: Columns of `tf.feature_column` for the linear model. None leaves the
        linear model out.
      linear_optimizer: A name ("Adagrad", "Adam", "Ftrl", "RMSProp", "SGD"; learning rate 0.005, or
        one over the square root of the number of columns if that is smaller), a Keras or v1
        optimizer, or a function that returns one.
      dnn_feature_columns: Dense columns for the network. None leaves the network out.
      dnn_optimizer: The optimizer of the network, in the same forms. One given by name has a
        learning rate of 0.001.
      dnn_hidden_units: Size of each hidden layer, starting at the features.
      dnn_activation_fn: Activation function of the hidden layers.
      dnn_dropout: The fraction of each hidden layer's values that training drops.
      n_classes: Number of classes. Without a vocabulary, labels are integers in [0, n_classes).
      weight_column: Name of a feature, or a numeric column, with the weight of each example's loss.
      label_vocabulary: List of the labels, if they are strings.
      config: A `RunConfig`.
      loss_reduction: A `tf.losses.Reduction` other than NONE.
      batch_norm: Whether batch normalization follows each hidden layer.
      linear_sparse_combiner: Combination of the weights of an example's ids: "sum", "mean" or
        "sqrtn".
    """

    def __init__(
        self,
        model_dir: str | os.PathLike[str] | None = None,
        linear_feature_columns: Any = None,
        linear_optimizer: Any = "Ftrl",
        dnn_feature_columns: Any = None,
        dnn_optimizer: Any = "Adagrad",
        dnn_hidden_units: Sequence[int] | None = None,
        dnn_activation_fn: Activation = tf.nn.relu,
        dnn_dropout: float | None = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Sequence[str] | None = None,
        config: RunConfig | None = None,
        warm_start_from: WarmStartFrom = None,
        loss_reduction: str = checks.MEAN,
        batch_norm: bool = False,
        linear_sparse_combiner: str = "sum",
    ) -> None:
        head = classifier_head(n_classes, weight_column, label_vocabulary, loss_reduction)
        network = (dnn_hidden_units, dnn_activation_fn, dnn_dropout, batch_norm)
        linear = (linear_feature_columns, linear_optimizer, linear_sparse_combiner)
        towers = dnn_and_linear((dnn_feature_columns, dnn_optimizer, *network), linear)
        super().__init__(head, towers, model_dir, config, warm_start_from)


class DNNLinearCombinedRegressor(CannedEstimator):
    """A regressor of a linear model and a deep network, trained with squared error.

    The arguments are as in `DNNLinearCombinedEstimator` and, for the head, of
    `BaselineRegressor`; `warm_start_from` is a path or `WarmStartSettings`.

    Args:
      model_dir: Folder of checkpoints and event files.
      linear_feature_columns: Columns of `tf.feature_column` for the linear model. None leaves the
        linear model out.
      linear_optimizer: A name ("Adagrad", "Adam", "Ftrl", "RMSProp", "SGD"; learning rate 0.005, or
        one over the square root of the number of columns if that is smaller), a Keras or v1
        optimizer, or a function that returns one.
      dnn_feature_columns: Dense columns for the network. None leaves the network out.
      dnn_optimizer: The optimizer of the network, in the same forms. One given by name has a
        learning rate of 0.001.
      dnn_hidden_units: Size of each hidden layer, starting at the features.
      dnn_activation_fn: Activation function of the hidden layers.
      dnn_dropout: The fraction of each hidden layer's values that training drops.
      label_dimension: Number of values to predict for each example.
      weight_column: Name of a feature, or a numeric column, with the weight of each example's loss.
      config: A `RunConfig`.
      loss_reduction: A `tf.losses.Reduction` other than NONE.
      batch_norm: Whether batch normalization follows each hidden layer.
      linear_sparse_combiner: Combination of the weights of an example's ids: "sum", "mean" or
        "sqrtn".
    """

    def __init__(
        self,
        model_dir: str | os.PathLike[str] | None = None,
        linear_feature_columns: Any = None,
        linear_optimizer: Any = "Ftrl",
        dnn_feature_columns: Any = None,
        dnn_optimizer: Any = "Adagrad",
        dnn_hidden_units: Sequence[int] | None = None,
        dnn_activation_fn: Activation = tf.nn.relu,
        dnn_dropout: float | None = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        config: RunConfig | None = None,
        warm_start_from: WarmStartFrom = None,
        loss_reduction: str = checks.MEAN,
        batch_norm: bool = False,
        linear_sparse_combiner: str = "sum",
    ) -> None:
        head = RegressionHead(label_dimension, weight_column, loss_reduction)
        network = (dnn_hidden_units, dnn_activation_fn, dnn_dropout, batch_norm)
        linear = (linear_feature_columns, linear_optimizer, linear_sparse_combiner)
        towers = dnn_and_linear((dnn_feature_columns, dnn_optimizer, *network), linear)
        super().__init__(head, towers, model_dir, config, warm_start_from)
