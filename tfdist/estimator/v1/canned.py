"""The canned estimators of tf.compat.v1.estimator: v1 optimizers, and losses summed over a batch.

They are `tfdist.estimator`'s classes of the same names but for what a docstring here says. An
optimizer is a name, a v1 optimizer, or a function that returns one.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.estimator.canned.baseline import baseline_tower
from tfdist.estimator.canned.dnn import dnn_tower
from tfdist.estimator.canned.dnn_linear_combined import dnn_and_linear
from tfdist.estimator.canned.layers import Activation
from tfdist.estimator.canned.linear import linear_tower
from tfdist.estimator.checkpoints.warm_start import WarmStartFrom
from tfdist.estimator.config.run_config import RunConfig
from tfdist.estimator.heads.v1_heads import SUM, classifier_head, regressor_head
from tfdist.estimator.v1.model import CannedV1Estimator


class BaselineEstimator(CannedV1Estimator):
    """As `tfdist.estimator.BaselineEstimator`.

    Arguments as in `tfdist.estimator.BaselineEstimator`: `head`, `model_dir`, `optimizer`,
    `config`.
    """

    def __init__(
        self,
        head: Any,
        model_dir: str | os.PathLike[str] | None = None,
        optimizer: Any = "Ftrl",
        config: RunConfig | None = None,
    ) -> None:
        super().__init__(head, [baseline_tower(optimizer)], model_dir, config)


class BaselineClassifier(CannedV1Estimator):
    """As `tfdist.estimator.BaselineClassifier`.

    Arguments as in `tfdist.estimator.BaselineClassifier`: `model_dir`, `n_classes`,
    `weight_column`, `label_vocabulary`, `optimizer`, `config`, `loss_reduction`.
    """

    def __init__(
        self,
        model_dir: str | os.PathLike[str] | None = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Sequence[str] | None = None,
        optimizer: Any = "Ftrl",
        config: RunConfig | None = None,
        loss_reduction: str = SUM,
    ) -> None:
        head = classifier_head(n_classes, weight_column, label_vocabulary, loss_reduction)
        super().__init__(head, [baseline_tower(optimizer, weight_column)], model_dir, config)


class BaselineRegressor(CannedV1Estimator):
    """As `tfdist.estimator.BaselineRegressor`.

    Arguments as in `tfdist.estimator.BaselineRegressor`: `model_dir`, `label_dimension`,
    `weight_column`, `optimizer`, `config`, `loss_reduction`.
    """

    def __init__(
        self,
        model_dir: str | os.PathLike[str] | None = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        optimizer: Any = "Ftrl",
        config: RunConfig | None = None,
        loss_reduction: str = SUM,
    ) -> None:
        head = regressor_head(label_dimension, weight_column, loss_reduction)
        super().__init__(head, [baseline_tower(optimizer, weight_column)], model_dir, config)


class DNNEstimator(CannedV1Estimator):
    """As `tfdist.estimator.DNNEstimator`; an optimizer given by name has a learning rate of 0.05.

    Args:
      input_layer_partitioner: Partitioner of embeddings. None leaves them whole.

    Arguments as in `tfdist.estimator.DNNEstimator`: `head`, `hidden_units`, `feature_columns`,
    `model_dir`, `activation_fn`, `dropout`, `config`, `warm_start_from`, `batch_norm`.
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
        input_layer_partitioner: Any = None,
        config: RunConfig | None = None,
        warm_start_from: WarmStartFrom = None,
        batch_norm: bool = False,
    ) -> None:
        tower = dnn_tower(
            feature_columns, optimizer, hidden_units, activation_fn, dropout, batch_norm
        )
        super().__init__(head, [tower], model_dir, config, warm_start_from, input_layer_partitioner)


class DNNClassifier(CannedV1Estimator):
    """As `tfdist.estimator.DNNClassifier`, with the partitioner of `DNNEstimator`.

    Arguments as in `tfdist.estimator.DNNClassifier`: `hidden_units`, `feature_columns`,
    `model_dir`, `n_classes`, `weight_column`, `label_vocabulary`, `optimizer`, `activation_fn`,
    `dropout`, `input_layer_partitioner`, `config`, `warm_start_from`, `loss_reduction`,
    `batch_norm`.
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
        input_layer_partitioner: Any = None,
        config: RunConfig | None = None,
        warm_start_from: WarmStartFrom = None,
        loss_reduction: str = SUM,
        batch_norm: bool = False,
    ) -> None:
        head = classifier_head(n_classes, weight_column, label_vocabulary, loss_reduction)
        tower = dnn_tower(
            feature_columns, optimizer, hidden_units, activation_fn, dropout, batch_norm
        )
        super().__init__(head, [tower], model_dir, config, warm_start_from, input_layer_partitioner)


class DNNRegressor(CannedV1Estimator):
    """As `tfdist.estimator.DNNRegressor`, with the partitioner of `DNNEstimator`.

    Arguments as in `tfdist.estimator.DNNRegressor`: `hidden_units`, `feature_columns`, `model_dir`,
    `label_dimension`, `weight_column`, `optimizer`, `activation_fn`, `dropout`,
    `input_layer_partitioner`, `config`, `warm_start_from`, `loss_reduction`, `batch_norm`.
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
        input_layer_partitioner: Any = None,
        config: RunConfig | None = None,
        warm_start_from: WarmStartFrom = None,
        loss_reduction: str = SUM,
        batch_norm: bool = False,
    ) -> None:
        head = regressor_head(label_dimension, weight_column, loss_reduction)
        tower = dnn_tower(
            feature_columns, optimizer, hidden_units, activation_fn, dropout, batch_norm
        )
        super().__init__(head, [tower], model_dir, config, warm_start_from, input_layer_partitioner)


class LinearEstimator(CannedV1Estimator):
    """As `tfdist.estimator.LinearEstimator`.

    Args:
      partitioner: Partitioner of the weights. None leaves them whole.

    Arguments as in `tfdist.estimator.LinearEstimator`: `head`, `feature_columns`, `model_dir`,
    `optimizer`, `config`, `sparse_combiner`, `warm_start_from`.
    """

    def __init__(
        self,
        head: Any,
        feature_columns: Any,
        model_dir: str | os.PathLike[str] | None = None,
        optimizer: Any = "Ftrl",
        config: RunConfig | None = None,
        partitioner: Any = None,
        sparse_combiner: str = "sum",
        warm_start_from: WarmStartFrom = None,
    ) -> None:
        tower = linear_tower(feature_columns, optimizer, sparse_combiner)
        super().__init__(head, [tower], model_dir, config, warm_start_from, partitioner)


class LinearClassifier(CannedV1Estimator):
    """As `tfdist.estimator.LinearClassifier`, with the partitioner of `LinearEstimator`.

    Arguments as in `tfdist.estimator.LinearClassifier`: `feature_columns`, `model_dir`,
    `n_classes`, `weight_column`, `label_vocabulary`, `optimizer`, `config`, `warm_start_from`,
    `loss_reduction`, `sparse_combiner`.
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
        partitioner: Any = None,
        warm_start_from: WarmStartFrom = None,
        loss_reduction: str = SUM,
        sparse_combiner: str = "sum",
    ) -> None:
        head = classifier_head(n_classes, weight_column, label_vocabulary, loss_reduction)
        tower = linear_tower(feature_columns, optimizer, sparse_combiner)
        super().__init__(head, [tower], model_dir, config, warm_start_from, partitioner)


class LinearRegressor(CannedV1Estimator):
    """As `tfdist.estimator.LinearRegressor`, with the partitioner of `LinearEstimator`.

    Arguments as in `tfdist.estimator.LinearRegressor`: `feature_columns`, `model_dir`,
    `label_dimension`, `weight_column`, `optimizer`, `config`, `warm_start_from`, `loss_reduction`,
    `sparse_combiner`.
    """

    def __init__(
        self,
        feature_columns: Any,
        model_dir: str | os.PathLike[str] | None = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        optimizer: Any = "Ftrl",
        config: RunConfig | None = None,
        partitioner: Any = None,
        warm_start_from: WarmStartFrom = None,
        loss_reduction: str = SUM,
        sparse_combiner: str = "sum",
    ) -> None:
        head = regressor_head(label_dimension, weight_column, loss_reduction)
        tower = linear_tower(feature_columns, optimizer, sparse_combiner)
        super().__init__(head, [tower], model_dir, config, warm_start_from, partitioner)


class DNNLinearCombinedEstimator(CannedV1Estimator):
    """As `tfdist.estimator.DNNLinearCombinedEstimator`.

    Args:
      input_layer_partitioner: Partitioner of embeddings and linear weights. None leaves them whole.

    Arguments as in `tfdist.estimator.DNNLinearCombinedEstimator`: `head`, `model_dir`,
    `linear_feature_columns`, `linear_optimizer`, `dnn_feature_columns`, `dnn_optimizer`,
    `dnn_hidden_units`, `dnn_activation_fn`, `dnn_dropout`, `config`, `batch_norm`,
    `linear_sparse_combiner`.
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
        input_layer_partitioner: Any = None,
        config: RunConfig | None = None,
        batch_norm: bool = False,
        linear_sparse_combiner: str = "sum",
    ) -> None:
        network = (dnn_hidden_units, dnn_activation_fn, dnn_dropout, batch_norm)
        linear = (linear_feature_columns, linear_optimizer, linear_sparse_combiner)
        towers = dnn_and_linear((dnn_feature_columns, dnn_optimizer, *network), linear)
        super().__init__(head, towers, model_dir, config, None, input_layer_partitioner)


class DNNLinearCombinedClassifier(CannedV1Estimator):
    """As `tfdist.estimator.DNNLinearCombinedClassifier`.

    `input_layer_partitioner` is that of `DNNLinearCombinedEstimator`.

    Arguments as in `tfdist.estimator.DNNLinearCombinedClassifier`: `model_dir`,
    `linear_feature_columns`, `linear_optimizer`, `dnn_feature_columns`, `dnn_optimizer`,
    `dnn_hidden_units`, `dnn_activation_fn`, `dnn_dropout`, `n_classes`, `weight_column`,
    `label_vocabulary`, `config`, `warm_start_from`, `loss_reduction`, `batch_norm`,
    `linear_sparse_combiner`.
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
        input_layer_partitioner: Any = None,
        config: RunConfig | None = None,
        warm_start_from: WarmStartFrom = None,
        loss_reduction: str = SUM,
        batch_norm: bool = False,
        linear_sparse_combiner: str = "sum",
    ) -> None:
        head = classifier_head(n_classes, weight_column, label_vocabulary, loss_reduction)
        network = (dnn_hidden_units, dnn_activation_fn, dnn_dropout, batch_norm)
        linear = (linear_feature_columns, linear_optimizer, linear_sparse_combiner)
        towers = dnn_and_linear((dnn_feature_columns, dnn_optimizer, *network), linear)
        super().__init__(head, towers, model_dir, config, warm_start_from, input_layer_partitioner)


class DNNLinearCombinedRegressor(CannedV1Estimator):
    """As `tfdist.estimator.DNNLinearCombinedRegressor`.

    `input_layer_partitioner` is that of `DNNLinearCombinedEstimator`.

    Arguments as in `tfdist.estimator.DNNLinearCombinedRegressor`: `model_dir`,
    `linear_feature_columns`, `linear_optimizer`, `dnn_feature_columns`, `dnn_optimizer`,
    `dnn_hidden_units`, `dnn_activation_fn`, `dnn_dropout`, `label_dimension`, `weight_column`,
    `config`, `warm_start_from`, `loss_reduction`, `batch_norm`, `linear_sparse_combiner`.
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
        input_layer_partitioner: Any = None,
        config: RunConfig | None = None,
        warm_start_from: WarmStartFrom = None,
        loss_reduction: str = SUM,
        batch_norm: bool = False,
        linear_sparse_combiner: str = "sum",
    ) -> None:
        head = regressor_head(label_dimension, weight_column, loss_reduction)
        network = (dnn_hidden_units, dnn_activation_fn, dnn_dropout, batch_norm)
        linear = (linear_feature_columns, linear_optimizer, linear_sparse_combiner)
        towers = dnn_and_linear((dnn_feature_columns, dnn_optimizer, *network), linear)
        super().__init__(head, towers, model_dir, config, warm_start_from, input_layer_partitioner)
