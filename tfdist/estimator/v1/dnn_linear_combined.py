"""A linear model beside a deep network, of tf.compat.v1.estimator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.estimator.canned.dnn import Activation, summarize_layer
from tfdist.estimator.canned.dnn_linear_combined import (
    DNN_LEARNING_RATE,
    check_hidden_units,
    check_parts,
    linear_learning_rate,
    not_sync_replicas,
)
from tfdist.estimator.canned.tower import check_features, v1_optimizer_maker
from tfdist.estimator.spec import EstimatorSpec
from tfdist.estimator.v1 import model
from tfdist.estimator.v1.estimator import Estimator
from tfdist.estimator.v1.model import dnn_logit_fn_builder, linear_logit_fn_builder


class _CombinedV1(Estimator):
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
        input_layer_partitioner: Any,
        batch_norm: bool,
        linear_sparse_combiner: str,
        model_dir: Any,
        config: Any,
        warm_start_from: Any = None,
    ) -> None:
        linear, dnn = check_parts(linear_feature_columns, dnn_feature_columns)
        makers = {}
        if dnn:
            makers["dnn"] = v1_optimizer_maker(dnn_optimizer, DNN_LEARNING_RATE)
        if linear:
            rate = linear_learning_rate(len(linear))
            makers["linear"] = v1_optimizer_maker(linear_optimizer, rate)

        def deep(features: Any, mode: str, config: Any, divide_input: Any) -> tf.Tensor:
            check_hidden_units(dnn_hidden_units)
            logit_fn = dnn_logit_fn_builder(
                head.logits_dimension,
                dnn_hidden_units or (),
                dnn,
                dnn_activation_fn,
                dnn_dropout,
                divide_input,
                batch_norm,
            )
            with v1.variable_scope("dnn", partitioner=model.partitioner(config)):
                return logit_fn(features, mode)

        def wide(features: Any, divide_input: Any) -> tf.Tensor:
            logit_fn = linear_logit_fn_builder(
                head.logits_dimension, linear, linear_sparse_combiner
            )
            with v1.variable_scope("linear", partitioner=divide_input):
                logits = logit_fn(features)
                summarize_layer(logits, "linear")
                return logits

        def minimize(loss: tf.Tensor) -> tf.Operation:
            steps = []
            for scope, maker in makers.items():
                own = v1.get_collection(v1.GraphKeys.TRAINABLE_VARIABLES, scope=f"{scope}/")
                steps.append(not_sync_replicas(maker)().minimize(loss, var_list=own))
            with tf.control_dependencies(steps):
                return v1.assign_add(v1.train.get_global_step(), 1).op

        def model_fn(features: Any, labels: Any, mode: str, config: Any) -> EstimatorSpec:
            check_features(features)
            divide = input_layer_partitioner or model.partitioner(config, model.SLICE_BYTES)
            parts = []
            if dnn:
                parts.append(deep(features, mode, config, divide))
            if linear:
                parts.append(wide(features, divide))
            spec: EstimatorSpec = head.create_estimator_spec(
                features=features,
                mode=mode,
                labels=labels,
                logits=parts[0] if len(parts) == 1 else parts[0] + parts[1],
                train_op_fn=model.train_together_with_updates(minimize),
            )
            return spec

        super().__init__(
            model_fn, model_dir=model_dir, config=config, warm_start_from=warm_start_from
        )


class DNNLinearCombinedEstimator(_CombinedV1):
    """A linear model and a deep network whose logits are added, with a head of the user's.

    Args:
      head: A head of `tfdist.estimator`.
      model_dir: Folder of checkpoints and event files.
      linear_feature_columns: Columns of the linear model; None leaves it out.
      linear_optimizer: A name ("Adagrad", "Adam", "Ftrl", "RMSProp", "SGD"; learning rate 0.005, or
        one over the square root of the number of columns if that is smaller), a v1 optimizer, or a
        function that returns one.
      dnn_feature_columns: Dense columns of the network; None leaves it out.
      dnn_optimizer: The same for the network; by name with a learning rate of 0.001.
      dnn_hidden_units: Size of each hidden layer, from the features on.
      dnn_activation_fn: Of the hidden layers.
      dnn_dropout: The part of each hidden layer's values that training drops.
      input_layer_partitioner: Divides embeddings and linear weights; None leaves them whole.
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
        input_layer_partitioner: Any = None,
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
            input_layer_partitioner=input_layer_partitioner,
            batch_norm=batch_norm,
            linear_sparse_combiner=linear_sparse_combiner,
            model_dir=model_dir,
            config=config,
        )


class DNNLinearCombinedClassifier(_CombinedV1):
    """A linear model and a deep network together tell two or more classes apart.

    Args:
      model_dir: As in `DNNLinearCombinedEstimator`, and so are the arguments that are not listed
        here.
      n_classes: Number of classes; labels are integers below it unless there is a vocabulary.
      weight_column: Name of a feature, or numeric column, that weighs each example's loss.
      label_vocabulary: The labels, if they are strings.
      warm_start_from: A path or `WarmStartSettings`.
      loss_reduction: A `tf.compat.v1.losses.Reduction` other than NONE.
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
        input_layer_partitioner: Any = None,
        config: Any = None,
        warm_start_from: Any = None,
        loss_reduction: str = model.SUM,
        batch_norm: bool = False,
        linear_sparse_combiner: str = "sum",
    ) -> None:
        super().__init__(
            model.classifier_head(n_classes, weight_column, label_vocabulary, loss_reduction),
            linear_feature_columns=linear_feature_columns,
            linear_optimizer=linear_optimizer,
            dnn_feature_columns=dnn_feature_columns,
            dnn_optimizer=dnn_optimizer,
            dnn_hidden_units=dnn_hidden_units,
            dnn_activation_fn=dnn_activation_fn,
            dnn_dropout=dnn_dropout,
            input_layer_partitioner=input_layer_partitioner,
            batch_norm=batch_norm,
            linear_sparse_combiner=linear_sparse_combiner,
            model_dir=model_dir,
            config=config,
            warm_start_from=warm_start_from,
        )


class DNNLinearCombinedRegressor(_CombinedV1):
    """A linear model and a deep network together predict numbers; squared error.

    Args:
      model_dir: As in `DNNLinearCombinedEstimator`, and so are the arguments that are not listed
        here.
      label_dimension: Numbers to predict for an example.
      weight_column: Name of a feature, or numeric column, that weighs each example's loss.
      warm_start_from: A path or `WarmStartSettings`.
      loss_reduction: A `tf.compat.v1.losses.Reduction` other than NONE.
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
        input_layer_partitioner: Any = None,
        config: Any = None,
        warm_start_from: Any = None,
        loss_reduction: str = model.SUM,
        batch_norm: bool = False,
        linear_sparse_combiner: str = "sum",
    ) -> None:
        super().__init__(
            model.regressor_head(label_dimension, weight_column, loss_reduction),
            linear_feature_columns=linear_feature_columns,
            linear_optimizer=linear_optimizer,
            dnn_feature_columns=dnn_feature_columns,
            dnn_optimizer=dnn_optimizer,
            dnn_hidden_units=dnn_hidden_units,
            dnn_activation_fn=dnn_activation_fn,
            dnn_dropout=dnn_dropout,
            input_layer_partitioner=input_layer_partitioner,
            batch_norm=batch_norm,
            linear_sparse_combiner=linear_sparse_combiner,
            model_dir=model_dir,
            config=config,
            warm_start_from=warm_start_from,
        )
