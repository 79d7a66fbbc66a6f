"""BinaryClassHead: each example is of one of two classes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1
from tf_keras.metrics import AUC, Accuracy, Mean, Precision, Recall

from tfdist.estimator.export.outputs import RegressionOutput
from tfdist.estimator.heads import arguments, classes, shapes
from tfdist.estimator.heads.measures import (
    AucOfPrecisionAndRecall,
    MajorityAccuracy,
    Measure,
    Scored,
    average_loss,
    measures_at_thresholds,
)
from tfdist.estimator.heads.multi_class import classification_outputs
from tfdist.estimator.heads.single_head import SingleHead


class BinaryClassHead(SingleHead):
    """Sigmoid cross entropy of one logit an example, [D0, D1, ... DN, 1].

    Args:
      weight_column: Name of a feature or numeric column with weights [D0, D1, ... DN] or
        [D0, D1, ... DN, 1], by which losses are multiplied.
      thresholds: Numbers in (0, 1); accuracy, precision and recall are measured at each.
      label_vocabulary: List or tuple of the two labels' strings. None: labels are numbers in
        [0, 1].
      loss_reduction: One of `tf.losses.Reduction`.
      loss_fn: From (labels, logits) or (labels, logits, features), labels float32 in [0, 1], to
        losses [D0, D1, ... DN, 1].
      name: Suffix of metrics and summaries.

    Raises:
      ValueError: If an argument is not usable.
    """

    def __init__(
        self,
        weight_column: Any = None,
        thresholds: Iterable[float] | None = None,
        label_vocabulary: Sequence[str] | None = None,
        loss_reduction: str = arguments.MEAN,
        loss_fn: Callable[..., Any] | None = None,
        name: str | None = None,
    ) -> None:
        arguments.check_vocabulary(label_vocabulary)
        self._thresholds = arguments.checked_thresholds(thresholds)
        self._label_vocabulary = label_vocabulary
        super().__init__(
            logits_dimension=1,
            loss_dimension=1,
            weight_column=weight_column,
            loss_reduction=loss_reduction,
            loss_fn=loss_fn,
            name=name,
        )

    def predictions(self, logits: Any, keys: Sequence[str] | None = None) -> dict[str, Any]:
        logits = shapes.checked_logits(logits, 1)
        with v1.name_scope("predictions", values=(logits,)):
            both = tf.concat([tf.zeros_like(logits), logits], -1, name="two_class_logits")
            predictions = {
                "logits": logits,
                "logistic": tf.sigmoid(logits, name="logistic"),
                **classes.predictions_of_one_class(both, 2, self._label_vocabulary),
            }
            return classes.chosen(predictions, keys)

    def _read_labels(self, labels: Any, logits: tf.Tensor) -> tf.Tensor:
        labels = shapes.checked_labels(labels, logits, 1)
        if self._label_vocabulary is not None:
            labels = classes.ids_of_words(labels, self._label_vocabulary)
        elif labels.dtype == tf.string:
            raise ValueError("Labels are strings: give label_vocabulary, or labels in [0, 1].")
        return shapes.checked_range(tf.cast(labels, tf.float32), 2)

    def _own_losses(self, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        return tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)

    def _measures(self) -> list[Measure]:
        def by_class(batch: Scored) -> tuple[Any, ...]:
            return batch.labels, batch.predictions["class_ids"]

        def by_score(batch: Scored) -> tuple[Any, ...]:
            return batch.labels, batch.predictions["logistic"]

        return [
            average_loss(),
            Measure("accuracy", Accuracy, by_class),
            Measure("precision", Precision, by_class),
            Measure("recall", Recall, by_class),
            Measure("prediction/mean", Mean, lambda batch: (batch.predictions["logistic"],)),
            Measure("label/mean", Mean, lambda batch: (batch.labels,)),
            Measure("accuracy_baseline", MajorityAccuracy, lambda batch: (batch.labels,)),
            Measure("auc", AUC, by_score),
            Measure("auc_precision_recall", AucOfPrecisionAndRecall, by_score),
            *measures_at_thresholds(self._thresholds, by_score),
        ]

    def _export_outputs(self, predictions: dict[str, tf.Tensor]) -> dict[str, Any]:
        return {
            **classification_outputs(predictions, predictions["all_classes"]),
            "regression": RegressionOutput(predictions["logistic"]),
        }
