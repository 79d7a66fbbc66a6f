"""Deep networks of tf.compat.v1.estimator, with v1 optimizers and summed losses."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.estimator.canned.dnn import Network, dnn_tower
from tfdist.estimator.canned.layers import Activation
from tfdist.estimator.checkpoints.warm_start import WarmStartFrom
from tfdist.estimator.heads.v1_heads import SUM, classifier_head, regressor_head
from tfdist.estimator.run_config import RunConfig
from tfdist.estimator.v1.model import CannedV1Estimator

LEARNING_RATE = 0.05


class DNNEstimator(CannedV1Estimator):
    """`tfdist.estimator.DNNEstimator` with v1 optimizers.

    Args:
      optimizer: A name (learning rate 0.05), a v1 optimizer, or a function that returns one.
      input_layer_partitioner: Partitioner of embeddings. None leaves them whole.
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
        network = Network(hidden_units, activation_fn, dropout, batch_norm)
        tower = dnn_tower(network, feature_columns, optimizer, LEARNING_RATE)
        super().__init__(head, [tower], model_dir, config, warm_start_from, input_layer_partitioner)


class DNNClassifier(CannedV1Estimator):
    """`tfdist.estimator.DNNClassifier` with v1 optimizers and a summed loss.

    Args:
      input_layer_partitioner: As in `DNNEstimator`.
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
        network = Network(hidden_units, activation_fn, dropout, batch_norm)
        tower = dnn_tower(network, feature_columns, optimizer, LEARNING_RATE)
        super().__init__(head, [tower], model_dir, config, warm_start_from, input_layer_partitioner)


class DNNRegressor(CannedV1Estimator):
    """`tfdist.estimator.DNNRegressor` with v1 optimizers and a summed loss.

    Args:
      input_layer_partitioner: As in `DNNEstimator`.
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
        network = Network(hidden_units, activation_fn, dropout, batch_norm)
        tower = dnn_tower(network, feature_columns, optimizer, LEARNING_RATE)
        super().__init__(head, [tower], model_dir, config, warm_start_from, input_layer_partitioner)
