"""A linear model and a deep network side by side, each with an optimizer of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.estimator.canned.dnn import Network, dnn_tower
from tfdist.estimator.canned.layers import Activation
from tfdist.estimator.canned.linear import linear_tower
from tfdist.estimator.canned.tower import CannedEstimator, Tower
from tfdist.estimator.heads import RegressionHead, checks
from tfdist.estimator.heads import binary_or_multi_class_head as classifier_head


def dnn_and_linear(
    network: Network, dnn: tuple[Any, Any], linear: tuple[Any, Any, str]
) -> list[Tower]:
    """Returns a deep and a linear part; one without feature columns is left out.

    Args:
      network: The layers of the deep part.
      dnn: Feature columns and optimizer; by name with a learning rate of 0.001.
      linear: Feature columns, optimizer, and sparse_combiner.

    Raises:
      ValueError: If there are no feature columns at all.
    """
    dnn_columns, linear_columns = tuple(dnn[0] or ()), tuple(linear[0] or ())
    towers = []
    if dnn_columns:
        towers.append(dnn_tower(network, dnn_columns, dnn[1], 0.001, is_part=True))
    if linear_columns:
        towers.append(linear_tower(linear_columns, *linear[1:], is_part=True))
    if not towers:
        raise ValueError(
            "Either linear_feature_columns or dnn_feature_columns must be defined. Give one of "
            "them or both."
        )
    return towers


class DNNLinearCombinedEstimator(CannedEstimator):
    """A linear model and a deep network whose logits are added, with a head of the user's.

    Args:
      head: A head of `tfdist.estimator`.
      model_dir: Folder of checkpoints and event files.
      linear_feature_columns: Columns of `tf.feature_column` for the linear model; None leaves it
        out.
      linear_optimizer: A name ("Adagrad", "Adam", "Ftrl", "RMSProp", "SGD"; learning rate 0.005, or
        one over the square root of the number of columns if that is smaller), a Keras or v1
        optimizer, or a function that returns one.
      dnn_feature_columns: Dense columns for the network; None leaves it out.
      dnn_optimizer: The same for the network; by name with a learning rate of 0.001.
      dnn_hidden_units: Size of each hidden layer, from the features on.
      dnn_activation_fn: Of the hidden layers.
      dnn_dropout: The part of each hidden layer's values that training drops.
      config: A `RunConfig`.
      batch_norm: Whether batch normalization follows each hidden layer.
      linear_sparse_combiner: How the weights of an example's ids are combined: "sum", "mean" or
        "sqrtn".
    """

    def __init__(
        self,
        head: Any,
        model_dir: Any = None,
        linear_feature_columns: Any = None,
        linear_optimizer: Any = "Ftrl",
        dnn_feature_columns: Any = None,
        dnn_optimizer: Any = "Adagrad",
        dnn_hidden_units: Sequence[int] | None = None,
        dnn_activation_fn: Activation = tf.nn.relu,
        dnn_dropout: float | None = None,
        config: Any = None,
        batch_norm: bool = False,
        linear_sparse_combiner: str = "sum",
    ) -> None:
        network = Network(dnn_hidden_units, dnn_activation_fn, dnn_dropout, batch_norm)
        linear = (linear_feature_columns, linear_optimizer, linear_sparse_combiner)
        towers = dnn_and_linear(network, (dnn_feature_columns, dnn_optimizer), linear)
        super().__init__(head, towers, model_dir, config)


class DNNLinearCombinedClassifier(CannedEstimator):
    """A linear model and a deep network together tell two or more classes apart.

    Args:
      model_dir: As in `DNNLinearCombinedEstimator`, and so are the arguments that are not listed
        here.
      n_classes: Number of classes; labels are integers below it unless there is a vocabulary.
      weight_column: Name of a feature, or numeric column, that weighs each example's loss.
      label_vocabulary: The labels, if they are strings.
      warm_start_from: A path or `WarmStartSettings`.
      loss_reduction: A `tf.losses.Reduction` other than NONE.
    """

    def __init__(
        self,
        model_dir: Any = None,
        linear_feature_columns: Any = None,
        linear_optimizer: Any = "Ftrl",
        dnn_feature_columns: Any = None,
        dnn_optimizer: Any = "Adagrad",
        dnn_hidden_units: Sequence[int] | None = None,
        dnn_activation_fn: Activation = tf.nn.relu,
        dnn_dropout: float | None = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Any = None,
        config: Any = None,
        warm_start_from: Any = None,
        loss_reduction: str = checks.MEAN,
        batch_norm: bool = False,
        linear_sparse_combiner: str = "sum",
    ) -> None:
        head = classifier_head(n_classes, weight_column, label_vocabulary, loss_reduction)
        network = Network(dnn_hidden_units, dnn_activation_fn, dnn_dropout, batch_norm)
        linear = (linear_feature_columns, linear_optimizer, linear_sparse_combiner)
        towers = dnn_and_linear(network, (dnn_feature_columns, dnn_optimizer), linear)
        super().__init__(head, towers, model_dir, config, warm_start_from)


class DNNLinearCombinedRegressor(CannedEstimator):
    """A linear model and a deep network together predict numbers; squared error.

    Args:
      model_dir: As in `DNNLinearCombinedEstimator`, and so are the arguments that are not listed
        here.
      label_dimension: Numbers to predict for an example.
      weight_column: Name of a feature, or numeric column, that weighs each example's loss.
      warm_start_from: A path or `WarmStartSettings`.
      loss_reduction: A `tf.losses.Reduction` other than NONE.
    """

    def __init__(
        self,
        model_dir: Any = None,
        linear_feature_columns: Any = None,
        linear_optimizer: Any = "Ftrl",
        dnn_feature_columns: Any = None,
        dnn_optimizer: Any = "Adagrad",
        dnn_hidden_units: Sequence[int] | None = None,
        dnn_activation_fn: Activation = tf.nn.relu,
        dnn_dropout: float | None = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        config: Any = None,
        warm_start_from: Any = None,
        loss_reduction: str = checks.MEAN,
        batch_norm: bool = False,
        linear_sparse_combiner: str = "sum",
    ) -> None:
        head = RegressionHead(label_dimension, weight_column, loss_reduction)
        network = Network(dnn_hidden_units, dnn_activation_fn, dnn_dropout, batch_norm)
        linear = (linear_feature_columns, linear_optimizer, linear_sparse_combiner)
        towers = dnn_and_linear(network, (dnn_feature_columns, dnn_optimizer), linear)
        super().__init__(head, towers, model_dir, config, warm_start_from)
