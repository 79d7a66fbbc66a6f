"""`tensorflow_estimator.python.estimator.head`: heads that libraries extend, and functions.

They are what TensorFlow Privacy's heads need. A library's head overrides
`_create_tpu_estimator_spec`, and calls functions of base_head in it.
Names and arguments are as in tf.estimator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.estimator.export.outputs import ClassificationOutput
from tfdist.estimator.heads import checks, classification, multi_label
from tfdist.estimator.heads.classification import all_names
from tfdist.estimator.heads.head import Head as Head
from tfdist.estimator.heads.head import SingleHead, write_loss
from tfdist.estimator.heads.train_op import build_train_op
from tfdist.estimator.spec import EstimatorSpec

DEFAULT_SERVING_KEY = v1.saved_model.signature_constants.DEFAULT_SERVING_SIGNATURE_DEF_KEY
CLASSIFY_SERVING_KEY = "classification"
REGRESS_SERVING_KEY = "regression"
PREDICT_SERVING_KEY = "predict"

check_logits_final_dim = checks.checked_logits


class _ExtensibleHead(SingleHead):
    """A head with subclasses that may override `_create_tpu_estimator_spec`."""

    def create_estimator_spec(self, *args: Any, **kwargs: Any) -> EstimatorSpec:
        own = getattr(self, "_create_tpu_estimator_spec", None)
        if own is None:
            return super().create_estimator_spec(*args, **kwargs)
        spec: EstimatorSpec = own(*args, **kwargs).as_estimator_spec()
        return spec

    def _processed_labels(self, logits: tf.Tensor, labels: Any) -> tf.Tensor:
        return self._read_labels(labels, logits)  # [D0, D1, ... DN, number of labels]

    def _unweighted_loss_and_weights(
        self, logits: tf.Tensor, label_ids: tf.Tensor, features: Any
    ) -> tuple[tf.Tensor, tf.Tensor | float]:
        losses = self._losses(label_ids, logits, features)  # [D0, D1, ... DN, loss_dimension]
        weights = self._weights(features, logits)
        return losses, 1.0 if weights is None else weights


class BinaryClassHead(_ExtensibleHead, classification.BinaryClassHead):
    """`tfdist.estimator.BinaryClassHead` for subclasses of libraries."""


class MultiClassHead(_ExtensibleHead, classification.MultiClassHead):
    """`tfdist.estimator.MultiClassHead` for subclasses of libraries."""


class MultiLabelHead(_ExtensibleHead, multi_label.MultiLabelHead):
    """`tfdist.estimator.MultiLabelHead` for subclasses of libraries."""


def classification_output(
    scores: tf.Tensor, n_classes: int, label_vocabulary: Sequence[str] | None = None
) -> ClassificationOutput:
    """Returns the export output of a classifier's scores, [batch, n_classes]."""
    return ClassificationOutput(scores, all_names(scores, n_classes, label_vocabulary))


def create_eval_metrics_tuple(
    fn: Callable[..., Any], kwargs: dict[str, Any]
) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Returns the `eval_metrics` of a spec: the function, and those of its arguments in the graph.

    Arguments that are no tensors are passed on as they are.
    """
    tensors = {name: value for name, value in kwargs.items() if tf.is_tensor(value)}
    others = {name: value for name, value in kwargs.items() if name not in tensors}

    def call(**given: object) -> Any:
        return fn(**others, **given)

    return call, tensors


def create_estimator_spec_train_op(
    head_name: str | None,
    optimizer: Any = None,
    trainable_variables: Sequence[tf.Variable] | None = None,
    train_op_fn: Callable[[tf.Tensor], tf.Operation] | None = None,
    update_ops: Sequence[tf.Operation] | None = None,
    regularized_training_loss: Any = None,
    loss_reduction: str = checks.MEAN,
) -> Any:
    """Builds the op of one training step from arguments as of `Head.create_estimator_spec`.

    The loss is [] or, for an optimizer that takes it, [batch]. `head_name` has no effect.
    """
    return build_train_op(
        regularized_training_loss,
        loss_reduction=loss_reduction,
        optimizer=optimizer,
        trainable_variables=trainable_variables,
        train_op_fn=train_op_fn,
        update_ops=update_ops,
    )


def create_estimator_spec_summary(
    regularized_training_loss: Any,
    regularization_losses: Sequence[tf.Tensor] | None = None,
    summary_key_fn: Callable[[str], str] | None = None,
) -> None:
    """Writes the summaries of a training step: the loss, and the regularization losses' sum."""
    write_loss(regularized_training_loss, regularization_losses, summary_key_fn or str)
