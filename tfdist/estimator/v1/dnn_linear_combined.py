"""Combined linear and deep models of tf.compat.v1.estimator."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.estimator.canned.dnn import Network
from tfdist.estimator.canned.dnn_linear_combined import dnn_and_linear
from tfdist.estimator.canned.layers import Activation
from tfdist.estimator.checkpoints.warm_start import WarmStartFrom
from tfdist.estimator.heads.v1_heads import SUM, classifier_head, regressor_head
from tfdist.estimator.run_config import RunConfig
from tfdist.estimator.v1.model import CannedV1Estimator


class DNNLinearCombinedEstimator(CannedV1Estimator):
    """`tfdist.estimator.DNNLinearCombinedEstimator` with v1 optimizers.

    Args:
      linear_optimizer: A name (with the same learning rates), a v1 optimizer, or a function that
        returns one.
      dnn_optimizer: The optimizer of the network, in the same forms.
      input_layer_partitioner: Partitioner of embeddings and linear weights. None leaves them whole.
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
        network = Network(dnn_hidden_units, dnn_activation_fn, dnn_dropout, batch_norm)
        linear = (linear_feature_columns, linear_optimizer, linear_sparse_combiner)
        towers = dnn_and_linear(network, (dnn_feature_columns, dnn_optimizer), linear)
        super().__init__(head, towers, model_dir, config, None, input_layer_partitioner)


class DNNLinearCombinedClassifier(CannedV1Estimator):
    """`tfdist.estimator.DNNLinearCombinedClassifier` with v1 optimizers and a summed loss.

    Args:
      input_layer_partitioner: As in `DNNLinearCombinedEstimator`.
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
        network = Network(dnn_hidden_units, dnn_activation_fn, dnn_dropout, batch_norm)
        linear = (linear_feature_columns, linear_optimizer, linear_sparse_combiner)
        towers = dnn_and_linear(network, (dnn_feature_columns, dnn_optimizer), linear)
        super().__init__(head, towers, model_dir, config, warm_start_from, input_layer_partitioner)


class DNNLinearCombinedRegressor(CannedV1Estimator):
    """`tfdist.estimator.DNNLinearCombinedRegressor` with v1 optimizers and a summed loss.

    Args:
      input_layer_partitioner: As in `DNNLinearCombinedEstimator`.
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
        network = Network(dnn_hidden_units, dnn_activation_fn, dnn_dropout, batch_norm)
        linear = (linear_feature_columns, linear_optimizer, linear_sparse_combiner)
        towers = dnn_and_linear(network, (dnn_feature_columns, dnn_optimizer), linear)
        super().__init__(head, towers, model_dir, config, warm_start_from, input_layer_partitioner)
