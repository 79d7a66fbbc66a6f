"""Classification heads for two classes, or for three or more, and the names of classes.

Each example belongs to exactly one class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1
from tf_keras.metrics import AUC, Accuracy, Mean, Precision, Recall

from tfdist.estimator.export.outputs import ClassificationOutput, PredictOutput, RegressionOutput
from tfdist.estimator.heads import checks
from tfdist.estimator.heads.eval_metrics import (
    AVERAGE_LOSS,
    AucOfPrecisionAndRecall,
    MajorityAccuracy,
    Measure,
    Scored,
    measures_at_thresholds,
)
from tfdist.estimator.heads.head import SingleHead

Vocabulary = Sequence[str] | None


class BinaryClassHead(SingleHead):
    """Head for two classes: sigmoid cross entropy of one logit per example, [D0, D1, ... DN, 1].

    Args:
      weight_column: Name of a feature, or a numeric column, with weights [D0, D1, ... DN] or
        [D0, D1, ... DN, 1]. Losses are multiplied by the weights.
      thresholds: Numbers in (0, 1). Accuracy, precision and recall are measured at each of them.
      label_vocabulary: List or tuple of the strings of the two labels. If None, labels are numbers
        in [0, 1].
      loss_reduction: One of `tf.losses.Reduction`.
      loss_fn: Function of (labels, logits) or (labels, logits, features) that returns losses
        [D0, D1, ... DN, 1]. Its labels are float32 in [0, 1].
      name: Suffix of metrics and summaries.

    Raises:
      ValueError: If an argument is invalid.
    """

    def __init__(
        self,
        weight_column: Any = None,
        thresholds: Iterable[float] | None = None,
        label_vocabulary: Sequence[str] | None = None,
        loss_reduction: str = checks.MEAN,
        loss_fn: Callable[..., tf.Tensor] | None = None,
        name: str | None = None,
    ) -> None:
        checks.check_vocabulary(label_vocabulary)
        self._thresholds = checks.checked_thresholds(thresholds)
        self._label_vocabulary = label_vocabulary
        super().__init__(1, weight_column, loss_reduction, loss_fn, name)

    def _predictions(self, logits: tf.Tensor) -> dict[str, tf.Tensor]:
        # [D0, D1, ... DN, 2]
        both = tf.concat([tf.zeros_like(logits), logits], -1, name="two_class_logits")
        return {
            "logits": logits,  # [D0, D1, ... DN, 1]
            "logistic": tf.sigmoid(logits, name="logistic"),  # [D0, D1, ... DN, 1]
            **predictions_of_one_class(both, 2, self._label_vocabulary),
        }

    def _read_labels(self, labels: Any, logits: tf.Tensor) -> tf.Tensor:
        labels = checks.checked_labels(labels, logits, 1)
        if self._label_vocabulary is not None:
            labels = ids_of_words(labels, self._label_vocabulary)
        elif labels.dtype == tf.string:
            raise ValueError("Labels are strings: give label_vocabulary, or labels in [0, 1].")
        return checks.checked_range(tf.cast(labels, tf.float32), 2)  # [D0, D1, ... DN, 1]

    def _own_losses(self, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        # [D0, D1, ... DN, 1]
        return tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)

    def _measures(self) -> list[Measure]:
        def by_score(batch: Scored) -> tuple[Any, ...]:
            return batch.labels, batch.predictions["logistic"]

        return [
            AVERAGE_LOSS,
            Measure("accuracy", Accuracy, _classes),
            Measure("precision", Precision, _classes),
            Measure("recall", Recall, _classes),
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


class MultiClassHead(SingleHead):
    """Head for three or more classes: softmax cross entropy of n_classes logits per example.

    The logits have the shape [D0, D1, ... DN, n_classes].

    Args:
      n_classes: Number of classes, greater than 2: an int, or an int tensor of the model's graph.
      weight_column: Name of a feature, or a numeric column, with weights [D0, D1, ... DN] or
        [D0, D1, ... DN, 1]. Losses are multiplied by the weights.
      label_vocabulary: List or tuple of the strings of the n_classes labels. If None, labels are
        integer ids in [0, n_classes).
      loss_reduction: One of `tf.losses.Reduction`.
      loss_fn: As in `BinaryClassHead`; its labels are integer ids.
      name: Suffix of metrics and summaries.

    Raises:
      ValueError: If an argument is invalid.
    """

    # If True, the ops that list all classes are made first, as in v1. The order of creation
    # determines the numbers in the ops' names.
    _lists_classes_first = False

    def __init__(
        self,
        n_classes: int,
        weight_column: Any = None,
        label_vocabulary: Sequence[str] | None = None,
        loss_reduction: str = checks.MEAN,
        loss_fn: Callable[..., tf.Tensor] | None = None,
        name: str | None = None,
    ) -> None:
        if n_classes is None:
            raise ValueError("n_classes cannot be None. Give the number of classes, above 2.")
        number = tf.get_static_value(n_classes)  # None if known only when the graph runs.
        checks.check_vocabulary(label_vocabulary, number)
        if number is not None and number <= 2:
            raise ValueError(f"n_classes must be > 2: {number}. BinaryClassHead is for 2.")
        self._label_vocabulary = label_vocabulary
        super().__init__(n_classes, weight_column, loss_reduction, loss_fn, name)

    def _predictions(self, logits: tf.Tensor) -> dict[str, tf.Tensor]:
        return {
            "logits": logits,  # [D0, D1, ... DN, n_classes]
            **predictions_of_one_class(
                logits, self.logits_dimension, self._label_vocabulary, self._lists_classes_first
            ),
        }

    def _read_labels(self, labels: Any, logits: tf.Tensor) -> tf.Tensor:
        labels = checks.checked_labels(labels, logits, 1)
        if self._label_vocabulary is None:
            if not labels.dtype.is_integer:
                raise ValueError(
                    f"Labels dtype should be integer. Instead got {labels.dtype}. Strings need a "
                    "label_vocabulary."
                )
        else:
            if labels.dtype != tf.string:
                raise ValueError(
                    "Labels dtype should be string if there is a vocabulary. Instead got "
                    f"{labels.dtype}"
                )
            labels = ids_of_words(labels, self._label_vocabulary)
        return checks.checked_range(labels, self.logits_dimension)  # [D0, D1, ... DN, 1]

    def _own_losses(self, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        ids = tf.squeeze(labels, -1)  # [D0, D1, ... DN]
        # [D0, D1, ... DN]
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=ids, logits=logits)
        return tf.expand_dims(losses, -1)  # [D0, D1, ... DN, 1]

    def _measures(self) -> list[Measure]:
        return [AVERAGE_LOSS, Measure("accuracy", Accuracy, _classes)]

    def _export_outputs(self, predictions: dict[str, tf.Tensor]) -> dict[str, Any]:
        return classification_outputs(predictions, predictions["all_classes"])


def _classes(batch: Scored) -> tuple[Any, ...]:
    return batch.labels, batch.predictions["class_ids"]


def classification_outputs(predictions: dict[str, tf.Tensor], names: tf.Tensor) -> dict[str, Any]:
    """Returns a classifier's export outputs: the probabilities of all classes, and predictions.

    "probabilities" and the classes' names have the shape [batch, n_classes].
    """
    output = ClassificationOutput(scores=predictions["probabilities"], classes=names)
    return {
        v1.saved_model.signature_constants.DEFAULT_SERVING_SIGNATURE_DEF_KEY: output,
        "classification": output,
        "predict": PredictOutput(predictions),
    }


def classifier_head(
    n_classes: int, weight_column: Any, label_vocabulary: Sequence[str] | None, loss_reduction: str
) -> BinaryClassHead | MultiClassHead:
    """Makes the head of a canned classifier."""
    if n_classes == 2:
        return BinaryClassHead(weight_column, None, label_vocabulary, loss_reduction)
    return MultiClassHead(n_classes, weight_column, label_vocabulary, loss_reduction)


def ids_of_words(words: object, vocabulary: Sequence[str]) -> Any:
    """Returns the int64 id of each word, or -1 for a word that is not in the vocabulary.

    Raises TypeError if the words are not strings.
    """
    # `init_scope`: a table made inside the loop over steps would never be initialized.
    with tf.init_scope():
        keys = tf.constant(list(vocabulary), tf.string)  # [n_classes]
        ids = tf.range(len(vocabulary), dtype=tf.int64)  # [n_classes]
        table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, ids), -1)
    return table.lookup(words)


def names_of_ids(ids: tf.Tensor, vocabulary: Vocabulary) -> tf.Tensor:
    """Returns the string of each int64 id, in the shape of `ids`."""
    if vocabulary:
        words = tf.constant(list(vocabulary), tf.string)  # [n_classes]
        # The op has the name from tf.estimator, which looks the ids up in a table.
        return tf.gather(words, ids, name="hash_table_Lookup/LookupTableFindV2")
    return tf.strings.as_string(ids, name="str_classes")


def all_ids(logits: tf.Tensor, n_classes: int) -> tf.Tensor:
    """Returns the int32 ids of all classes for each example, [batch, n_classes]."""
    return tf.tile(tf.expand_dims(tf.range(n_classes), 0), [tf.shape(logits)[0], 1])


def all_names(logits: tf.Tensor, n_classes: int, vocabulary: Vocabulary) -> tf.Tensor:
    """Returns the names of all classes for each example, [batch, n_classes]."""
    if vocabulary:
        names = tf.constant(list(vocabulary), tf.string)  # [n_classes]
    else:
        names = tf.strings.as_string(tf.range(n_classes))  # [n_classes]
    return tf.tile(tf.expand_dims(names, 0), [tf.shape(logits)[0], 1])


def predictions_of_one_class(
    logits: tf.Tensor, n_classes: int, vocabulary: Vocabulary, lists_classes_first: bool = False
) -> dict[str, tf.Tensor]:
    """Predicts one class for each example, from logits [D0, D1, ... DN, n_classes].

    `lists_classes_first`: Whether the ops of "all_class_ids" and "all_classes" are made first.

    Returns:
      Predictions by name: "probabilities" in the shape of `logits`, "class_ids" (int64) and
      "classes" [D0, D1, ... DN, 1], "all_class_ids" and "all_classes" [D0, n_classes].
    """

    def list_classes() -> dict[str, tf.Tensor]:
        return {
            "all_class_ids": all_ids(logits, n_classes),
            "all_classes": all_names(logits, n_classes, vocabulary),
        }

    listed = list_classes() if lists_classes_first else {}
    # int64 [D0, D1, ... DN, 1]
    class_ids = tf.expand_dims(tf.argmax(logits, axis=-1, name="class_ids"), -1)
    return {
        # [D0, D1, ... DN, n_classes]
        "probabilities": tf.nn.softmax(logits, name="probabilities"),
        "class_ids": class_ids,
        "classes": names_of_ids(class_ids, vocabulary),  # [D0, D1, ... DN, 1]
        **(listed or list_classes()),
    }
