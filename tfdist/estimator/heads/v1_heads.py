"""The heads of tf.compat.v1.estimator's models.

They differ from the newer heads in the names of tensors, the loss reductions and the metrics.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.estimator.heads import checks
from tfdist.estimator.heads.classification import BinaryClassHead, MultiClassHead
from tfdist.estimator.heads.head import SingleHead
from tfdist.estimator.heads.regression import RegressionHead
from tfdist.estimator.spec import EstimatorSpec, ModeKeys

_Reduction = v1.losses.Reduction
SUM = _Reduction.SUM


def scope_of_next_head() -> str:
    """Returns the name scope that the next head without a name will open."""
    return f"{v1.get_default_graph().unique_name('head', mark_as_used=False)}/"


class _V1Head(SingleHead):
    """A head with v1 tensor names, which adds the summary 'average_loss' to a summed loss."""

    _opens_loss_scope = False  # So that the loss is named head/weighted_loss/Sum.

    def create_estimator_spec(
        self, features: Any, mode: str, logits: tf.Tensor, *rest: Any, **more: Any
    ) -> EstimatorSpec:
        scope = scope_of_next_head()
        spec = super().create_estimator_spec(features, mode, logits, *rest, **more)
        if mode == ModeKeys.TRAIN and self.loss_reduction == checks.SUM:
            with v1.name_scope(scope):
                average = spec.loss / self._sum_of_weights(features, logits)  # []
            with v1.name_scope(""):
                v1.summary.scalar("average_loss", average)
        return spec

    def _sum_of_weights(self, features: Any, logits: tf.Tensor) -> tf.Tensor:
        losses = tf.ones_like(logits[..., : self._loss_dimension])  # [D0 ... DN, loss_dimension]
        weights = self._weights(features, logits)
        return tf.reduce_sum(losses if weights is None else losses * weights)  # []


class _BinaryHead(_V1Head, BinaryClassHead):
    """A binary head with the v1 area under the precision-recall curve, summed by trapezoids."""

    def create_estimator_spec(
        self,
        features: Any,
        mode: str,
        logits: tf.Tensor,
        labels: Any = None,
        *rest: Any,
        **more: Any,
    ) -> EstimatorSpec:
        spec = super().create_estimator_spec(features, mode, logits, labels, *rest, **more)
        if mode != ModeKeys.EVAL:
            return spec
        numbers, _, weights = self._losses_and_weights(labels, logits, features)
        area = v1.metrics.auc(numbers, spec.predictions["logistic"], weights, curve="PR")
        return spec._replace(eval_metric_ops={**spec.eval_metric_ops, "auc_precision_recall": area})


class _MultiClassHead(_V1Head, MultiClassHead):
    _lists_classes_first = True


class _RegressionHead(_V1Head, RegressionHead):
    pass


def classifier_head(
    n_classes: int, weight_column: Any, label_vocabulary: Sequence[str] | None, loss_reduction: str
) -> SingleHead:
    """Makes the head of a v1 classifier."""
    reduction = _as_v2(loss_reduction, weight_column)
    if n_classes == 2:
        return _BinaryHead(weight_column, None, label_vocabulary, reduction)
    return _MultiClassHead(n_classes, weight_column, label_vocabulary, reduction)


def regressor_head(label_dimension: int, weight_column: Any, loss_reduction: str) -> SingleHead:
    """Makes the head of a v1 regressor."""
    reduction = _as_v2(loss_reduction, weight_column)
    return _RegressionHead(label_dimension, weight_column, reduction)


def _as_v2(loss_reduction: str, weight_column: Any) -> str:
    """Converts a v1 reduction to an equivalent v2 one; without weights all v1 means are equal."""
    if loss_reduction == SUM:
        return str(checks.SUM)
    if loss_reduction == _Reduction.SUM_OVER_BATCH_SIZE:
        return str(checks.MEAN)
    if loss_reduction in _Reduction.all() and loss_reduction != _Reduction.NONE:
        if weight_column is None:
            return str(checks.MEAN)
        raise ValueError(
            f"loss_reduction {loss_reduction} divides by the weights, which heads cannot do. Use "
            "Reduction.SUM or Reduction.SUM_OVER_BATCH_SIZE, or leave weight_column out."
        )
    raise ValueError(
        f"Invalid loss_reduction: {loss_reduction}. Use tf.compat.v1.losses.Reduction.SUM or "
        "SUM_OVER_BATCH_SIZE."
    )
