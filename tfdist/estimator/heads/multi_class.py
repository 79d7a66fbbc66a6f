"""MultiClassHead: each example is of one of three or more classes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1
from tf_keras.metrics import Accuracy

from tfdist.estimator.export.outputs import ClassificationOutput, PredictOutput
from tfdist.estimator.heads import arguments, classes, shapes
from tfdist.estimator.heads.measures import Measure, average_loss
from tfdist.estimator.heads.single_head import SingleHead


class MultiClassHead(SingleHead):
    """Softmax cross entropy of n_classes logits an example, [D0, D1, ... DN, n_classes].

    Args:
      n_classes: Number of classes, above 2; an int, or an int tensor of the model's graph.
      weight_column: Name of a feature or numeric column with weights [D0, D1, ... DN] or
        [D0, D1, ... DN, 1], by which losses are multiplied.
      label_vocabulary: List or tuple of the n_classes labels' strings. None: labels are ids from 0.
      loss_reduction: One of `tf.losses.Reduction`.
      loss_fn: From (labels, logits) or (labels, logits, features), labels integer ids, to losses
        [D0, D1, ... DN, 1].
      name: Suffix of metrics and summaries.

    Raises:
      ValueError: If an argument is not usable.
    """

    def __init__(
        self,
        n_classes: Any,
        weight_column: Any = None,
        label_vocabulary: Sequence[str] | None = None,
        loss_reduction: str = arguments.MEAN,
        loss_fn: Callable[..., Any] | None = None,
        name: str | None = None,
    ) -> None:
        if n_classes is None:
            raise ValueError("n_classes cannot be None. Give the number of classes, above 2.")
        number = tf.get_static_value(n_classes)  # None: known when the graph runs.
        arguments.check_vocabulary(label_vocabulary, number)
        if number is not None and number <= 2:
            raise ValueError(f"n_classes must be > 2: {number}. BinaryClassHead is for 2.")
        self._label_vocabulary = label_vocabulary
        super().__init__(
            logits_dimension=n_classes,
            loss_dimension=1,
            weight_column=weight_column,
            loss_reduction=loss_reduction,
            loss_fn=loss_fn,
            name=name,
        )

    def predictions(self, logits: Any, keys: Sequence[str] | None = None) -> dict[str, Any]:
        n_classes = self.logits_dimension
        logits = shapes.checked_logits(logits, n_classes)
        with v1.name_scope("predictions", values=(logits,)):
            predictions = {
                "logits": logits,
                **classes.predictions_of_one_class(logits, n_classes, self._label_vocabulary),
            }
            return classes.chosen(predictions, keys)

    def _read_labels(self, labels: Any, logits: tf.Tensor) -> tf.Tensor:
        labels = shapes.checked_labels(labels, logits, 1)
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
            labels = classes.ids_of_words(labels, self._label_vocabulary)
        return shapes.checked_range(labels, self.logits_dimension)

    def _own_losses(self, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        ids = tf.squeeze(labels, -1)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=ids, logits=logits)
        return tf.expand_dims(losses, -1)

    def _measures(self) -> list[Measure]:
        return [
            average_loss(),
            Measure(
                "accuracy", Accuracy, lambda batch: (batch.labels, batch.predictions["class_ids"])
            ),
        ]

    def _export_outputs(self, predictions: dict[str, tf.Tensor]) -> dict[str, Any]:
        return classification_outputs(predictions, predictions["all_classes"])


def classification_outputs(predictions: dict[str, tf.Tensor], names: tf.Tensor) -> dict[str, Any]:
    """Returns the export outputs of a classifier: all classes' probabilities, and predictions.

    Args:
      predictions: With "probabilities" [batch, n_classes].
      names: Strings [batch, n_classes].
    """
    output = ClassificationOutput(scores=predictions["probabilities"], classes=names)
    return {
        v1.saved_model.signature_constants.DEFAULT_SERVING_SIGNATURE_DEF_KEY: output,
        "classification": output,
        "predict": PredictOutput(predictions),
    }
