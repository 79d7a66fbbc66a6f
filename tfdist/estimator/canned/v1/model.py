"""What the model_fns of tf.compat.v1.estimator share: heads, partitions, one way to train.

They use v1 optimizers. Variables are made with `get_variable` in partitioned scopes, and the
optimizer works inside the model's scope: both are in the slots' names in old checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.estimator.canned.optimizers import MakeOptimizer
from tfdist.estimator.heads import BinaryClassHead, MultiClassHead, RegressionHead, arguments
from tfdist.estimator.heads.shapes import checked_weights
from tfdist.estimator.spec import EstimatorSpec, ModeKeys

_Reduction = v1.losses.Reduction
SUM = _Reduction.SUM

SLICE_BYTES = 64 << 20


class V1Head:
    """A head that also writes the summary 'average_loss', as those of v1 did beside a summed loss.

    Args:
      head: A classifier's or regressor's.
      weight_column: The head's.
    """

    def __init__(self, head: Any, weight_column: Any) -> None:
        self._head = head
        self._weight_column = weight_column
        self.logits_dimension = head.logits_dimension
        self.loss_reduction = head.loss_reduction

    def create_estimator_spec(
        self, features: Any, mode: str, logits: Any, labels: Any, train_op_fn: Any
    ) -> EstimatorSpec:
        """Does what the head does; `train_op_fn` gets the loss."""

        def with_summary(loss: tf.Tensor) -> Any:
            if self.loss_reduction == arguments.SUM:
                with v1.name_scope(""):
                    v1.summary.scalar("average_loss", loss / self._sum_of_weights(features, logits))
            return train_op_fn(loss)

        spec: EstimatorSpec = self._head.create_estimator_spec(
            features=features, mode=mode, logits=logits, labels=labels, train_op_fn=with_summary
        )
        return spec

    def _sum_of_weights(self, features: Any, logits: tf.Tensor) -> tf.Tensor:
        is_regression = isinstance(self._head, RegressionHead)
        losses = tf.ones_like(logits if is_regression else logits[..., :1])
        if self._weight_column is None:
            return tf.reduce_sum(losses)
        return tf.reduce_sum(losses * checked_weights(features, self._weight_column, logits))


class _BinaryHead(BinaryClassHead):
    """Measures the area under the precision-recall curve as v1 did, by trapezoids."""

    def create_estimator_spec(
        self, features: Any, mode: str, logits: Any, labels: Any = None, *rest: Any, **more: Any
    ) -> EstimatorSpec:
        spec = super().create_estimator_spec(features, mode, logits, labels, *rest, **more)
        if mode != ModeKeys.EVAL:
            return spec
        numbers, _, weights = self._losses_and_weights(labels, logits, features)
        area = v1.metrics.auc(numbers, spec.predictions["logistic"], weights, curve="PR")
        return spec._replace(eval_metric_ops={**spec.eval_metric_ops, "auc_precision_recall": area})


def classifier_head(
    n_classes: int, weight_column: Any, label_vocabulary: Any, loss_reduction: str
) -> V1Head:
    """Makes the head of a v1 classifier."""
    common = {
        "weight_column": weight_column,
        "label_vocabulary": label_vocabulary,
        "loss_reduction": _as_v2(loss_reduction, weight_column),
    }
    head = _BinaryHead(**common) if n_classes == 2 else MultiClassHead(n_classes, **common)
    return V1Head(head, weight_column)


def regressor_head(label_dimension: int, weight_column: Any, loss_reduction: str) -> V1Head:
    """Makes the head of a v1 regressor."""
    head = RegressionHead(
        label_dimension=label_dimension,
        weight_column=weight_column,
        loss_reduction=_as_v2(loss_reduction, weight_column),
    )
    return V1Head(head, weight_column)


def _as_v2(loss_reduction: str, weight_column: Any) -> str:
    """Translates a `tf.compat.v1.losses.Reduction`; without weights all means are one.

    Raises:
      ValueError: If there is no v2 reduction like it.
    """
    if loss_reduction == SUM:
        return str(arguments.SUM)
    if loss_reduction == _Reduction.SUM_OVER_BATCH_SIZE:
        return str(arguments.MEAN)
    if loss_reduction in _Reduction.all() and loss_reduction != _Reduction.NONE:
        if weight_column is None:
            return str(arguments.MEAN)
        raise ValueError(
            f"loss_reduction {loss_reduction} divides by the weights, which heads cannot do. Use "
            "Reduction.SUM or Reduction.SUM_OVER_BATCH_SIZE, or leave weight_column out."
        )
    raise ValueError(
        f"Invalid loss_reduction: {loss_reduction}. Use tf.compat.v1.losses.Reduction.SUM or "
        "SUM_OVER_BATCH_SIZE."
    )


def partitioner(config: Any, min_slice_bytes: int | None = None) -> Any:
    """Returns what divides variables over parameter servers; here always into one part.

    Args:
      config: The RunConfig.
      min_slice_bytes: The smallest part; None is TensorFlow's default.
    """
    count = getattr(config, "num_ps_replicas", 0) or 0
    if min_slice_bytes is None:
        return v1.min_max_variable_partitioner(max_partitions=count)
    return v1.min_max_variable_partitioner(max_partitions=count, min_slice_size=min_slice_bytes)


def train_together_with_updates(minimize: Callable[[tf.Tensor], Any]) -> Callable[..., Any]:
    """Returns a train_op_fn that trains in the scope 'head' and runs the graph's update ops."""
    with v1.name_scope(None, "head") as scope:
        pass

    def train_op_fn(loss: tf.Tensor) -> tf.Operation:
        with v1.name_scope(scope):
            return tf.group(minimize(loss), *v1.get_collection(v1.GraphKeys.UPDATE_OPS))

    return train_op_fn


def create_spec(
    head: Any, features: Any, labels: Any, mode: str, logits: tf.Tensor, maker: MakeOptimizer
) -> EstimatorSpec:
    """Trains all trainable variables of the graph with one optimizer."""

    def minimize(loss: tf.Tensor) -> Any:
        return maker().minimize(loss, global_step=v1.train.get_global_step())

    spec: EstimatorSpec = head.create_estimator_spec(
        features=features,
        mode=mode,
        labels=labels,
        logits=logits,
        train_op_fn=train_together_with_updates(minimize),
    )
    return spec
