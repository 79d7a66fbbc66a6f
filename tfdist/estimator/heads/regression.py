"""Regression heads, which predict one or more numbers for each example."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1
from tf_keras.metrics import Mean

from tfdist.estimator.export.outputs import PredictOutput, RegressionOutput
from tfdist.estimator.heads import checks
from tfdist.estimator.heads.eval_metrics import AVERAGE_LOSS, Measure
from tfdist.estimator.heads.head import SingleHead


class RegressionHead(SingleHead):
    """Head for regression: squared error of label_dimension logits per example.

    The logits have the shape [D0, D1, ... DN, label_dimension].

    Args:
      label_dimension: Number of values per example.
      weight_column: Name of a feature, or a numeric column, with weights [D0, D1, ... DN],
        [D0, D1, ... DN, 1] or [D0, D1, ... DN, label_dimension]. Losses are multiplied by the
        weights.
      loss_reduction: One of `tf.losses.Reduction`. A mean is taken over all values.
      loss_fn: Function of (labels, logits) or (labels, logits, features) that returns losses in
        the shape of the logits.
      inverse_link_fn: Function from logits to the predicted values. None is the identity. The loss
        is computed from the logits.
      name: Suffix of metrics and summaries.

    Raises:
      ValueError: If an argument is invalid.
    """

    _may_weigh_logits = True

    def __init__(
        self,
        label_dimension: int = 1,
        weight_column: Any = None,
        loss_reduction: str = checks.MEAN,
        loss_fn: Callable[..., tf.Tensor] | None = None,
        inverse_link_fn: Callable[[tf.Tensor], tf.Tensor] | None = None,
        name: str | None = None,
    ) -> None:
        if label_dimension < 1:
            raise ValueError(f"Invalid label_dimension {label_dimension}. It must be at least 1.")
        self._inverse_link_fn = inverse_link_fn
        self._loss_dimension = label_dimension
        super().__init__(label_dimension, weight_column, loss_reduction, loss_fn, name)

    def _predictions(self, logits: tf.Tensor) -> dict[str, tf.Tensor]:
        # Both predictions: [D0, D1, ... DN, label_dimension]
        if self._inverse_link_fn is None:
            return {"predictions": logits}
        return {"predictions": self._inverse_link_fn(logits), "logits": logits}

    def _read_labels(self, labels: Any, logits: tf.Tensor) -> tf.Tensor:
        labels = checks.checked_labels(labels, logits, self.logits_dimension)
        return tf.cast(labels, tf.float32)  # [D0, D1, ... DN, label_dimension]

    def _own_losses(self, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        return tf.math.squared_difference(logits, labels)  # [D0, D1, ... DN, label_dimension]

    def _measures(self) -> list[Measure]:
        return [
            AVERAGE_LOSS,
            Measure("prediction/mean", Mean, lambda batch: (batch.predictions["predictions"],)),
            Measure("label/mean", Mean, lambda batch: (batch.labels,)),
        ]

    def _export_outputs(self, predictions: dict[str, tf.Tensor]) -> dict[str, Any]:
        output = RegressionOutput(predictions["predictions"])
        return {
            v1.saved_model.signature_constants.DEFAULT_SERVING_SIGNATURE_DEF_KEY: output,
            "regression": output,
            "predict": PredictOutput(predictions),
        }


class PoissonRegressionHead(RegressionHead):
    """Head for Poisson regression, with the loss `tf.nn.log_poisson_loss`.

    The logits are the logarithms of the predicted means.

    Args:
      label_dimension: Number of values per example.
      weight_column: Name of a feature, or a numeric column, with weights [D0, D1, ... DN],
        [D0, D1, ... DN, 1] or [D0, D1, ... DN, label_dimension]. Losses are multiplied by the
        weights.
      loss_reduction: One of `tf.losses.Reduction`. A mean is taken over all values.
      compute_full_loss: Whether the loss includes the constant term log(label!).
      name: Suffix of metrics and summaries.
    """

    def __init__(
        self,
        label_dimension: int = 1,
        weight_column: Any = None,
        loss_reduction: str = checks.MEAN,
        compute_full_loss: bool = True,
        name: str | None = None,
    ) -> None:
        self._compute_full_loss = compute_full_loss
        super().__init__(label_dimension, weight_column, loss_reduction, None, tf.exp, name)

    def _own_losses(self, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        # [D0, D1, ... DN, label_dimension]
        return tf.nn.log_poisson_loss(labels, logits, compute_full_loss=self._compute_full_loss)


class LogisticRegressionHead(RegressionHead):
    """Head for logistic regression: sigmoid cross entropy of labels in [0, 1].

    Unlike `BinaryClassHead`, it predicts and exports no classes, only the logistic value, and it
    measures no accuracy.

    Args:
      weight_column: Name of a feature, or a numeric column, with weights [D0, D1, ... DN] or
        [D0, D1, ... DN, 1]. Losses are multiplied by the weights.
      loss_reduction: One of `tf.losses.Reduction`.
      name: Suffix of metrics and summaries.
    """

    def __init__(
        self, weight_column: Any = None, loss_reduction: str = checks.MEAN, name: str | None = None
    ) -> None:
        super().__init__(1, weight_column, loss_reduction, None, tf.sigmoid, name)

    def _own_losses(self, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        labels = checks.checked_range(labels, 2, "Labels must be in range [0, 1]")
        # [D0, D1, ... DN, 1]
        return tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
