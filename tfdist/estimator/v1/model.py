"""The model_fn of the canned estimators of tf.compat.v1.estimator: layers, partitions, training.

Optimizers come from `tf.compat.v1.train`. Ops are in the same name scopes as in tf.estimator.

Variables are made with `get_variable` in scopes that may be partitioned. The scopes and the
partitions are part of the names in old checkpoints, such as `<variable>/part_0`. They also
determine where optimizers put their slots.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1
import tf_keras

from tfdist.estimator.canned.dnn import dnn_tower
from tfdist.estimator.canned.layers import BATCH_NORM_MOMENTUM, Activation, Layers, check_columns
from tfdist.estimator.canned.linear import linear_tower
from tfdist.estimator.canned.tower import Tower, check_features, total, v1_optimizer_maker
from tfdist.estimator.checkpoints.warm_start import WarmStartFrom
from tfdist.estimator.config.run_config import RunConfig
from tfdist.estimator.heads.v1_heads import scope_of_next_head
from tfdist.estimator.spec import EstimatorSpec, ModeKeys
from tfdist.estimator.v1.estimator import Estimator
from tfdist.strategies.private_tensorflow import is_v2_column

Minimize = Callable[[tf.Tensor], tf.Operation]

# tf.estimator divided variables among the parameter servers.
_IN_ONE_PART = v1.fixed_size_partitioner(1)


class CannedV1Estimator(Estimator):
    """A v1 Estimator with a model of towers and a head.

    Args:
      head: As in `tfdist.estimator.canned.tower.CannedEstimator`, as are all arguments not listed
        here.
      input_partitioner: Partitioner of embeddings and linear weights. None leaves them whole.
    """

    def __init__(
        self,
        head: Any,
        towers: Sequence[Tower],
        model_dir: str | os.PathLike[str] | None,
        config: RunConfig | None,
        warm_start_from: WarmStartFrom = None,
        input_partitioner: Any = None,
    ) -> None:
        model_fn = _make_model_fn(head, towers, input_partitioner)
        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)


def _make_model_fn(
    head: Any, towers: Sequence[Tower], input_partitioner: Any
) -> Callable[..., EstimatorSpec]:
    makers = [tower.optimizer_maker(v1_optimizer_maker) for tower in towers]

    def minimize_by_all(loss: tf.Tensor) -> tf.Operation:
        return makers[0]().minimize(loss, global_step=v1.train.get_global_step())

    def minimize_by_parts(loss: tf.Tensor) -> tf.Operation:
        steps = []
        for tower, make in zip(towers, makers, strict=True):
            own = v1.get_collection(v1.GraphKeys.TRAINABLE_VARIABLES, scope=f"{tower.name}/")
            steps.append(make().minimize(loss, var_list=own))
        with tf.control_dependencies(steps):
            return v1.assign_add(v1.train.get_global_step(), 1).op

    def model_fn(features: Any, labels: Any, mode: str) -> EstimatorSpec:
        def logits_of(tower: Tower) -> tf.Tensor:
            return tower.build(layers, features, mode, head.logits_dimension)

        def create_spec(logits: tf.Tensor, minimize: Minimize) -> EstimatorSpec:
            train_op_fn = _train_with_updates(minimize, scope_of_next_head())
            spec: EstimatorSpec = head.create_estimator_spec(
                features=features, mode=mode, labels=labels, logits=logits, train_op_fn=train_op_fn
            )
            return spec

        check_features(features)
        layers = ScopedLayers(_IN_ONE_PART, input_partitioner or _IN_ONE_PART)
        if not towers[0].is_part:
            # The head and the optimizer build inside the tower's scope, because the names of the
            # slots include it.
            with layers.scope(towers[0].name):
                return create_spec(logits_of(towers[0]), minimize_by_all)
        parts = []
        for tower in towers:
            with layers.scope(tower.name):
                parts.append(logits_of(tower))
        return create_spec(total(parts), minimize_by_parts)

    return model_fn


def _train_with_updates(minimize: Minimize, scope: str) -> Minimize:
    """Returns a train_op_fn that builds in this name scope and also runs the graph's update ops."""

    def train_op_fn(loss: tf.Tensor) -> tf.Operation:
        with v1.name_scope(scope):
            return tf.group(minimize(loss), *v1.get_collection(v1.GraphKeys.UPDATE_OPS))

    return train_op_fn


class ScopedLayers(Layers):
    """The layers of one tower, made in the current variable scope.

    Args:
      partitioner: Partitioner of the network's variables.
      input_partitioner: Partitioner of embeddings and linear weights.
    """

    takes_v1_columns = True
    linear_name = "linear_model"

    def __init__(self, partitioner: Any, input_partitioner: Any) -> None:
        super().__init__()
        self._partitioner = partitioner
        self._input_partitioner = input_partitioner

    def scope(self, tower: str) -> contextlib.AbstractContextManager[Any]:
        if tower == "baseline":
            return contextlib.nullcontext()
        is_dnn = tower == "dnn"
        partitioner = self._partitioner if is_dnn else self._input_partitioner
        return v1.variable_scope(tower, partitioner=partitioner)

    def tag(self, layer: str) -> str:
        # The name scope is added to the tag, so tags begin with "dnn/dnn/" as in tf.estimator.
        return f"{v1.get_variable_scope().name}/{layer}".lstrip("/")

    def input(
        self, features: dict[str, Any], feature_columns: Sequence[Any], is_training: bool
    ) -> tf.Tensor:
        scope = v1.variable_scope("input_from_feature_columns", partitioner=self._input_partitioner)
        with scope:
            if not all(map(is_v2_column, feature_columns)):
                return v1.feature_column.input_layer(features, feature_columns)
            columns = check_columns(feature_columns)
            layer = v1.keras.layers.DenseFeatures(columns, name="input_layer")
            return layer(features, training=is_training)

    def dense(self, values: tf.Tensor, size: int, activation_fn: Activation, name: str) -> Any:
        with v1.variable_scope(name):
            kernel = v1.get_variable(
                "kernel", [values.shape[-1], size], initializer=v1.glorot_uniform_initializer()
            )
            bias = v1.get_variable("bias", [size], initializer=v1.zeros_initializer())
            # [batch, size]
            sums = tf.nn.bias_add(tf.matmul(values, kernel), tf.convert_to_tensor(bias))
            return tf_keras.activations.get(activation_fn)(sums)

    def dropout(self, values: tf.Tensor, rate: float) -> tf.Tensor:
        return tf.nn.dropout(values, rate=rate)

    def batch_norm(self, values: tf.Tensor, name: str, is_training: bool) -> tf.Tensor:
        """Normalizes as in `Layers`; the updates are in the graph's UPDATE_OPS collection."""
        layer = v1.layers.BatchNormalization(momentum=BATCH_NORM_MOMENTUM, name=name)
        return layer(values, training=is_training)


def dnn_logit_fn_builder(
    units: int,
    hidden_units: Sequence[int],
    feature_columns: Sequence[Any],
    activation_fn: Activation,
    dropout: float | None,
    input_layer_partitioner: Any,
    batch_norm: bool,
) -> Callable[[Any, str], tf.Tensor]:
    """Returns a function of (features, mode) that builds a network and its summaries.

    From `hidden_units` on, arguments are as in `DNNEstimator`. The updates of batch
    normalization are in the graph's UPDATE_OPS collection.

    Raises:
      ValueError: If `units`, the number of logits per example, is not an int.
    """
    if not isinstance(units, int):
        raise ValueError(f"units must be an int. Given type: {type(units)}")
    tower = dnn_tower(feature_columns, None, hidden_units, activation_fn, dropout, batch_norm)

    def dnn_logit_fn(features: Any, mode: str) -> tf.Tensor:
        return tower.build(ScopedLayers(None, input_layer_partitioner), features, mode, units)

    return dnn_logit_fn


def linear_logit_fn_builder(
    units: int, feature_columns: Sequence[Any], sparse_combiner: str = "sum"
) -> Callable[[Any], tf.Tensor]:
    """Returns a function of features that builds a linear model and its summaries.

    `units` is the number of logits per example; the other arguments are as in `LinearEstimator`.
    """
    tower = linear_tower(feature_columns, None, sparse_combiner)

    def linear_logit_fn(features: Any) -> tf.Tensor:
        return tower.build(ScopedLayers(None, None), features, ModeKeys.PREDICT, units)

    return linear_logit_fn
