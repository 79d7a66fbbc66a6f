"""Deep networks of tf.compat.v1.estimator: v1 optimizers, summed losses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.estimator.canned.dnn import Activation
from tfdist.estimator.canned.tower import check_features, v1_optimizer_maker
from tfdist.estimator.spec import EstimatorSpec
from tfdist.estimator.v1 import model
from tfdist.estimator.v1.estimator import Estimator
from tfdist.estimator.v1.model import dnn_logit_fn_builder


class DNNEstimator(Estimator):
    """A deep network with a head of the user's.

    Args:
      head: A head of `tfdist.estimator`.
      hidden_units: Size of each hidden layer, from the features on.
      feature_columns: Dense columns.
      model_dir: Folder of checkpoints and event files.
      optimizer: A name ("Adagrad", "Adam", "Ftrl", "RMSProp", "SGD"; learning rate 0.05), a v1
        optimizer, or a function that returns one.
      activation_fn: Of the hidden layers.
      dropout: The part of each hidden layer's values that training drops.
      input_layer_partitioner: Divides embeddings; None leaves them whole.
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
        input_layer_partitioner: Any = None,
        config: Any = None,
        warm_start_from: Any = None,
        batch_norm: bool = False,
    ) -> None:
        columns = tuple(feature_columns or ())
        maker = v1_optimizer_maker(optimizer, 0.05)

        def model_fn(features: Any, labels: Any, mode: str, config: Any) -> EstimatorSpec:
            check_features(features)
            logit_fn = dnn_logit_fn_builder(
                head.logits_dimension,
                hidden_units,
                columns,
                activation_fn,
                dropout,
                input_layer_partitioner or model.partitioner(config, model.SLICE_BYTES),
                batch_norm,
            )
            with v1.variable_scope("dnn", partitioner=model.partitioner(config)):
                logits = logit_fn(features, mode)
                return model.create_spec(head, features, labels, mode, logits, maker)

        super().__init__(
            model_fn, model_dir=model_dir, config=config, warm_start_from=warm_start_from
        )


class DNNClassifier(DNNEstimator):
    """A deep network that tells two or more classes apart; softmax or sigmoid cross entropy.

    Args:
      hidden_units: As in `DNNEstimator`, and so are the arguments that are not listed here.
      n_classes: Number of classes; labels are integers below it unless there is a vocabulary.
      weight_column: Name of a feature, or numeric column, that weighs each example's loss.
      label_vocabulary: The labels, if they are strings.
      loss_reduction: A `tf.compat.v1.losses.Reduction` other than NONE.
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
        input_layer_partitioner: Any = None,
        config: Any = None,
        warm_start_from: Any = None,
        loss_reduction: str = model.SUM,
        batch_norm: bool = False,
    ) -> None:
        super().__init__(
            model.classifier_head(n_classes, weight_column, label_vocabulary, loss_reduction),
            hidden_units,
            feature_columns,
            model_dir=model_dir,
            optimizer=optimizer,
            activation_fn=activation_fn,
            dropout=dropout,
            input_layer_partitioner=input_layer_partitioner,
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
      loss_reduction: A `tf.compat.v1.losses.Reduction` other than NONE.
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
        input_layer_partitioner: Any = None,
        config: Any = None,
        warm_start_from: Any = None,
        loss_reduction: str = model.SUM,
        batch_norm: bool = False,
    ) -> None:
        super().__init__(
            model.regressor_head(label_dimension, weight_column, loss_reduction),
            hidden_units,
            feature_columns,
            model_dir=model_dir,
            optimizer=optimizer,
            activation_fn=activation_fn,
            dropout=dropout,
            input_layer_partitioner=input_layer_partitioner,
            config=config,
            warm_start_from=warm_start_from,
            batch_norm=batch_norm,
        )
