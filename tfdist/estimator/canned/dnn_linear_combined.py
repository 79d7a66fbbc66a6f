"""A linear model and a deep network side by side, each with an optimizer of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.estimator.canned.dnn import Activation, dnn_tower, summarize_layer
from tfdist.estimator.canned.linear import linear_tower
from tfdist.estimator.canned.tower import Logits, MakeOptimizer, Tower, make_model_fn
from tfdist.estimator.estimator import Estimator
from tfdist.estimator.heads import RegressionHead, binary_or_multi_class_head, checks

DNN_LEARNING_RATE = 0.001


def linear_learning_rate(num_columns: int) -> float:
    """Returns the rate of a linear optimizer given by name."""
    return min(0.005, 1.0 / math.sqrt(num_columns))


def check_parts(
    linear_feature_columns: Any, dnn_feature_columns: Any
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Returns both parts' columns.

    Raises:
      ValueError: If there are none at all.
    """
    linear, dnn = tuple(linear_feature_columns or ()), tuple(dnn_feature_columns or ())
    if not linear and not dnn:
        raise ValueError(
            "Either linear_feature_columns or dnn_feature_columns must be defined. Give one of "
            "them or both."
        )
    return linear, dnn


def check_hidden_units(hidden_units: Any) -> None:
    """Refuses a network without hidden layers.

    Raises:
      ValueError: If so.
    """
    if not hidden_units:
        raise ValueError(
            "dnn_hidden_units must be defined when dnn_feature_columns is specified. Give the size "
            "of each hidden layer, such as [64, 32]."
        )


def not_sync_replicas(make_optimizer: MakeOptimizer) -> MakeOptimizer:
    """Returns a function that refuses, with ValueError, an optimizer that bears none beside it."""

    def make() -> Any:
        optimizer = make_optimizer()
        if isinstance(optimizer, v1.train.SyncReplicasOptimizer):
            raise ValueError(
                "SyncReplicasOptimizer does not support multi optimizers case. Therefore, it is "
                "not supported in DNNLinearCombined model. Use a DNN or a Linear model with it."
            )
        return optimizer

    return make


def _deep_tower(
    columns: tuple[Any, ...],
    optimizer: Any,
    hidden_units: Sequence[int] | None,
    activation_fn: Activation,
    dropout: float | None,
    batch_norm: bool,
) -> Tower:
    def build(features: dict[str, Any], mode: str, units: int) -> Logits:
        check_hidden_units(hidden_units)
        return tower.build(features, mode, units)

    tower = dnn_tower(
        hidden_units or (),
        columns,
        optimizer,
        activation_fn,
        dropout,
        batch_norm,
        DNN_LEARNING_RATE,
    )
    return Tower(build=build, make_optimizer=not_sync_replicas(tower.make_optimizer))


def _wide_tower(columns: tuple[Any, ...], optimizer: Any, sparse_combiner: str) -> Tower:
    def build(features: dict[str, Any], mode: str, units: int) -> Logits:
        logits = tower.build(features, mode, units)
        summarize_layer(logits.values, "linear")
        return logits

    tower = linear_tower(columns, optimizer, sparse_combiner, linear_learning_rate(len(columns)))
    return Tower(build=build, make_optimizer=not_sync_replicas(tower.make_optimizer))


class _Combined(Estimator):
    """What the three estimators of this file do with their head."""

    def __init__(
        self,
        head: Any,
        *,
        linear_feature_columns: Any,
        linear_optimizer: Any,
        dnn_feature_columns: Any,
        dnn_optimizer: Any,
        dnn_hidden_units: Sequence[int] | None,
        dnn_activation_fn: Activation,
        dnn_dropout: float | None,
        batch_norm: bool,
        linear_sparse_combiner: str,
        model_dir: Any,
        config: Any,
        warm_start_from: Any = None,
    ) -> None:
        linear, dnn = check_parts(linear_feature_columns, dnn_feature_columns)
        towers = []
        if dnn:
            towers.append(
                _deep_tower(
                    dnn, dnn_optimizer, dnn_hidden_units, dnn_activation_fn, dnn_dropout, batch_norm
                )
            )
        if linear:
            towers.append(_wide_tower(linear, linear_optimizer, linear_sparse_combiner))
        super().__init__(
            make_model_fn(head, towers),
            model_dir=model_dir,
            config=config,
            warm_start_from=warm_start_from,
        )


class DNNLinearCombinedEstimator(_Combined):
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
        super().__init__(
            head,
            linear_feature_columns=linear_feature_columns,
            linear_optimizer=linear_optimizer,
            dnn_feature_columns=dnn_feature_columns,
            dnn_optimizer=dnn_optimizer,
            dnn_hidden_units=dnn_hidden_units,
            dnn_activation_fn=dnn_activation_fn,
            dnn_dropout=dnn_dropout,
            batch_norm=batch_norm,
            linear_sparse_combiner=linear_sparse_combiner,
            model_dir=model_dir,
            config=config,
        )


class DNNLinearCombinedClassifier(_Combined):
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
        head = binary_or_multi_class_head(
            n_classes,
            weight_column=weight_column,
            label_vocabulary=label_vocabulary,
            loss_reduction=loss_reduction,
        )
        super().__init__(
            head,
            linear_feature_columns=linear_feature_columns,
            linear_optimizer=linear_optimizer,
            dnn_feature_columns=dnn_feature_columns,
            dnn_optimizer=dnn_optimizer,
            dnn_hidden_units=dnn_hidden_units,
            dnn_activation_fn=dnn_activation_fn,
            dnn_dropout=dnn_dropout,
            batch_norm=batch_norm,
            linear_sparse_combiner=linear_sparse_combiner,
            model_dir=model_dir,
            config=config,
            warm_start_from=warm_start_from,
        )


class DNNLinearCombinedRegressor(_Combined):
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
        head = RegressionHead(
            label_dimension=label_dimension,
            weight_column=weight_column,
            loss_reduction=loss_reduction,
        )
        super().__init__(
            head,
            linear_feature_columns=linear_feature_columns,
            linear_optimizer=linear_optimizer,
            dnn_feature_columns=dnn_feature_columns,
            dnn_optimizer=dnn_optimizer,
            dnn_hidden_units=dnn_hidden_units,
            dnn_activation_fn=dnn_activation_fn,
            dnn_dropout=dnn_dropout,
            batch_norm=batch_norm,
            linear_sparse_combiner=linear_sparse_combiner,
            model_dir=model_dir,
            config=config,
            warm_start_from=warm_start_from,
        )
