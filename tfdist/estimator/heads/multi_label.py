"""`MultiLabelHead`, for examples that belong to any number of classes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf
from tf_keras.metrics import AUC, Mean

from tfdist.estimator.heads import checks, classification
from tfdist.estimator.heads.classification import classification_outputs
from tfdist.estimator.heads.eval_metrics import (
    AVERAGE_LOSS,
    AucOfPrecisionAndRecall,
    Measure,
    Scored,
    measures_at_thresholds,
)
from tfdist.estimator.heads.head import SingleHead


class MultiLabelHead(SingleHead):
    """Head for several classes per example: sigmoid cross entropy, averaged over the classes.

    Labels are a dense tensor [D0, D1, ... DN, n_classes] of 0 and 1, or a SparseTensor
    [D0, D1, ... DN, ?] of the classes of each example. In a SparseTensor, classes are ids or, with
    a vocabulary, strings.

    Args:
      n_classes: Number of classes, greater than 1.
      weight_column: Name of a feature, or a numeric column, with weights [D0, D1, ... DN] or
        [D0, D1, ... DN, 1]. Losses are multiplied by the weights.
      thresholds: Numbers in (0, 1). Accuracy, precision and recall are measured at each of them.
      label_vocabulary: List or tuple of the strings of the n_classes labels.
      loss_reduction: One of `tf.losses.Reduction`.
      loss_fn: As in `BinaryClassHead`; its labels are 0 and 1.
      classes_for_class_based_metrics: Ids, or words of the vocabulary, of classes that are also
        measured separately.
      name: Suffix of metrics and summaries.

    Raises:
      ValueError: If an argument is invalid.
    """

    def __init__(
        self,
        n_classes: int,
        weight_column: Any = None,
        thresholds: Iterable[float] | None = None,
        label_vocabulary: Sequence[str] | None = None,
        loss_reduction: str = checks.MEAN,
        loss_fn: Callable[..., tf.Tensor] | None = None,
        classes_for_class_based_metrics: Sequence[int] | Sequence[str] | None = None,
        name: str | None = None,
    ) -> None:
        if n_classes is None or n_classes < 2:
            raise ValueError(
                "n_classes must be > 1 for multi-label classification. Given: "
                f"{n_classes}. BinaryClassHead is for one class."
            )
        checks.check_vocabulary(label_vocabulary, n_classes)
        self._thresholds = checks.checked_thresholds(thresholds)
        self._label_vocabulary = label_vocabulary
        self._measured_classes = _class_ids(
            classes_for_class_based_metrics, n_classes, label_vocabulary
        )
        super().__init__(n_classes, weight_column, loss_reduction, loss_fn, name)

    def _predictions(self, logits: tf.Tensor) -> dict[str, tf.Tensor]:
        probabilities = tf.sigmoid(logits, name="probabilities")  # [D0, D1, ... DN, n_classes]
        names = classification.all_names(logits, self.logits_dimension, self._label_vocabulary)
        # The names of all classes: [D0, n_classes]
        return {"logits": logits, "probabilities": probabilities, "classes": names}

    def _read_labels(self, labels: Any, logits: tf.Tensor) -> tf.Tensor:
        n_classes = self.logits_dimension
        if isinstance(labels, tf.SparseTensor):
            labels = self._indicators(labels)
        elif labels is not None and not isinstance(labels, tf.RaggedTensor):
            rule = "labels must be an integer indicator Tensor with values in [0, 1]"
            labels = checks.checked_range(tf.convert_to_tensor(labels), 2, rule)
        return checks.checked_labels(labels, logits, n_classes)

    def _indicators(self, labels: tf.SparseTensor) -> tf.Tensor:
        """Converts ids or strings [D0, D1, ... DN, ?] to int64 0 and 1 for each class."""
        n_classes = self.logits_dimension
        if labels.dtype == tf.string and self._label_vocabulary is not None:
            ids = classification.ids_of_words(labels.values, self._label_vocabulary)
        elif labels.dtype.is_integer:
            rule = f"labels must be an integer SparseTensor with values in [0, {n_classes})"
            ids = checks.checked_range(labels.values, n_classes, rule)
        else:
            raise ValueError(
                f"Labels dtype should be integer. Instead got {labels.dtype}. Strings need a "
                "label_vocabulary."
            )
        sparse = tf.SparseTensor(labels.indices, ids, labels.dense_shape)
        return tf.cast(tf.sparse.to_indicator(sparse, n_classes), tf.int64)

    def _own_losses(self, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        numbers = tf.cast(labels, logits.dtype)  # [D0, D1, ... DN, n_classes]
        # [D0, D1, ... DN, n_classes]
        losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=numbers, logits=logits)
        return tf.reduce_mean(losses, axis=-1, keepdims=True)  # [D0, D1, ... DN, 1]

    def _measures(self) -> list[Measure]:
        def by_score(batch: Scored) -> tuple[Any, ...]:
            return batch.labels, batch.predictions["probabilities"]

        measures = [
            AVERAGE_LOSS,
            Measure("auc", AUC, by_score),
            Measure("auc_precision_recall", AucOfPrecisionAndRecall, by_score),
            *measures_at_thresholds(self._thresholds, by_score),
        ]
        for class_id in self._measured_classes:
            measures += _measures_of_class(class_id, self._label_vocabulary)
        return measures

    def _export_outputs(self, predictions: dict[str, tf.Tensor]) -> dict[str, Any]:
        return classification_outputs(predictions, predictions["classes"])


def _measures_of_class(class_id: int, vocabulary: Sequence[str] | None) -> list[Measure]:
    name = f"class{class_id}" if vocabulary is None else vocabulary[class_id]

    def of_class(tensor: tf.Tensor) -> tf.Tensor:
        return tensor[..., class_id : class_id + 1]  # [D0, D1, ... DN, 1]

    def scores(batch: Scored) -> tuple[Any, ...]:
        return (of_class(batch.predictions["probabilities"]),)

    def by_score(batch: Scored) -> tuple[Any, ...]:
        return of_class(batch.labels), *scores(batch)

    return [
        Measure(f"probability_mean/{name}", Mean, scores),
        Measure(f"auc/{name}", AUC, by_score),
        Measure(f"auc_precision_recall/{name}", AucOfPrecisionAndRecall, by_score),
    ]


def _class_ids(chosen: Any, n_classes: int, vocabulary: Sequence[str] | None) -> tuple[int, ...]:
    """Converts ids or words to ids; ValueError unless each is a class."""
    chosen = tuple(chosen or ())
    allowed: Sequence[Any] = range(n_classes)
    shown = f"range [0, {n_classes - 1}]"
    if chosen and isinstance(chosen[0], str):
        if not vocabulary:
            raise ValueError(
                "label_vocabulary must be provided when classes_for_class_based_metrics are "
                "strings."
            )
        allowed, shown = vocabulary, f"label_vocabulary {vocabulary}"
    for label in chosen:
        if label not in allowed:
            raise ValueError(
                f"All classes_for_class_based_metrics must be in {shown}. Given: {label}"
            )
    return tuple(map(allowed.index, chosen))
