"""A head with one loss; what the classification and regression heads share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1
from tf_keras.metrics import Mean

from tfdist.estimator.calls import call_with
from tfdist.estimator.heads import arguments, shapes
from tfdist.estimator.heads.head import Head, Metrics
from tfdist.estimator.heads.keras_optimizers import forget_dependent_variables
from tfdist.estimator.heads.measures import Measure, Scored
from tfdist.estimator.heads.train_op import build_train_op
from tfdist.estimator.spec import EstimatorSpec, ModeKeys

REGULARIZATION_LOSS = "regularization_loss"
_V1_REDUCTIONS = {
    arguments.SUM: v1.losses.Reduction.SUM,
    arguments.MEAN: v1.losses.Reduction.SUM_OVER_BATCH_SIZE,
    arguments.AUTO: v1.losses.Reduction.SUM_OVER_BATCH_SIZE,
}


class SingleHead(Head):
    """One tensor of logits, one of labels, one loss.

    A subclass says how labels are read, what an example's loss is, what is predicted, measured
    and exported.

    Args:
      logits_dimension: Size of the logits' last dimension.
      loss_dimension: Size of the last dimension of what loss_fn returns.
      weight_column: None, a feature's name or a numeric column; the loss of an example is
        multiplied by its weight.
      loss_reduction: One of `tf.losses.Reduction`.
      loss_fn: From (labels, logits) or (labels, logits, features) to the loss of each example;
        None takes the head's own.
      name: Suffix of metrics and summaries.
    """

    def __init__(
        self,
        *,
        logits_dimension: Any,
        loss_dimension: Any,
        weight_column: Any,
        loss_reduction: str,
        loss_fn: Callable[..., Any] | None,
        name: str | None,
    ) -> None:
        arguments.check_loss_reduction(loss_reduction)
        arguments.check_loss_fn(loss_fn)
        self._logits_dimension = logits_dimension
        self._loss_dimension = loss_dimension
        self._weight_column = weight_column
        self._loss_reduction = loss_reduction
        self._loss_fn = loss_fn
        self._name = name

    # What differs.

    _may_weigh_logits = False

    @abstractmethod
    def _read_labels(self, labels: Any, logits: tf.Tensor) -> tf.Tensor:
        """Checks the labels against the logits and makes numbers of them."""

    @abstractmethod
    def _own_losses(self, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        """Returns the loss of each example, [D0, D1, ... DN, loss_dimension]."""

    @abstractmethod
    def _measures(self) -> list[Measure]:
        """Lists what an evaluation measures."""

    @abstractmethod
    def _export_outputs(self, predictions: dict[str, tf.Tensor]) -> dict[str, Any]:
        """Returns the export outputs by signature name."""

    # What is the same.

    @property
    def name(self) -> str | None:
        return self._name

    @property
    def logits_dimension(self) -> Any:
        return self._logits_dimension

    @property
    def loss_reduction(self) -> str:
        return self._loss_reduction

    def loss(
        self,
        labels: Any,
        logits: Any,
        features: Any = None,
        mode: str | None = None,
        regularization_losses: Sequence[Any] | None = None,
    ) -> Any:
        with v1.name_scope("losses", values=(logits, labels)):
            logits = shapes.checked_logits(logits, self.logits_dimension)
            _, losses, weights = self._losses_and_weights(labels, logits, features)
            # It also tells a v1 optimizer whether to divide by the number of workers.
            loss = v1.losses.compute_weighted_loss(
                losses if weights is None else losses * weights,
                loss_collection=None,
                reduction=_V1_REDUCTIONS[self._loss_reduction],
            )
            return add_regularization(loss, regularization_losses)

    def metrics(self, regularization_losses: Sequence[Any] | None = None) -> Metrics:
        with v1.name_scope("metrics"):
            metrics = {self._summary_key(m.key): m.make(name=m.key) for m in self._measures()}
            if regularization_losses is not None:
                key = self._summary_key(REGULARIZATION_LOSS)
                metrics[key] = Mean(name=REGULARIZATION_LOSS)
        return metrics

    def update_metrics(  # type: ignore[override]
        self,
        eval_metrics: Metrics,
        features: Any,
        logits: Any,
        labels: Any,
        regularization_losses: Sequence[Any] | None = None,
    ) -> Metrics:
        predictions = self.predictions(logits)
        logits = shapes.checked_logits(logits, self.logits_dimension)
        numbers, losses, weights = self._losses_and_weights(labels, logits, features)
        batch = Scored(labels=numbers, losses=losses, weights=weights, predictions=predictions)
        for measure in self._measures():
            metric = eval_metrics[self._summary_key(measure.key)]
            metric.update_state(*measure.inputs(batch), sample_weight=weights)
        if regularization_losses is not None:
            total = tf.add_n(regularization_losses)
            eval_metrics[self._summary_key(REGULARIZATION_LOSS)].update_state(total)
        return eval_metrics

    def create_estimator_spec(
        self,
        features: Any,
        mode: str,
        logits: Any,
        labels: Any = None,
        optimizer: Any = None,
        trainable_variables: Sequence[Any] | None = None,
        train_op_fn: Callable[[Any], Any] | None = None,
        update_ops: Sequence[Any] | None = None,
        regularization_losses: Sequence[Any] | None = None,
    ) -> EstimatorSpec:
        forget_dependent_variables(optimizer)
        with v1.name_scope(self._name, "head"):
            predictions = self.predictions(logits)
            if mode == ModeKeys.PREDICT:
                outputs = self._export_outputs(predictions)
                return EstimatorSpec(mode, predictions=predictions, export_outputs=outputs)
            loss = self.loss(
                labels,
                logits,
                features=features,
                mode=mode,
                regularization_losses=regularization_losses,
            )
            if mode == ModeKeys.EVAL:
                metrics = self.update_metrics(
                    self.metrics(regularization_losses=regularization_losses),
                    features,
                    logits,
                    labels,
                    regularization_losses=regularization_losses,
                )
                return EstimatorSpec(
                    mode, predictions=predictions, loss=loss, eval_metric_ops=metrics
                )
            train_op = build_train_op(
                loss,
                loss_reduction=self.loss_reduction,
                optimizer=optimizer,
                trainable_variables=trainable_variables,
                train_op_fn=train_op_fn,
                update_ops=update_ops,
            )
        write_loss(loss, regularization_losses, self._summary_key)
        return EstimatorSpec(ModeKeys.TRAIN, predictions=predictions, loss=loss, train_op=train_op)

    def _losses_and_weights(
        self, labels: Any, logits: tf.Tensor, features: Any
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor | None]:
        """Returns the labels as numbers, the loss of each and their weights."""
        labels = self._read_labels(labels, logits)
        if self._loss_fn:
            offered = {"labels": labels, "logits": logits, "features": features}
            losses = call_with(self._loss_fn, offered)
            losses = shapes.checked_losses(losses, logits, self._loss_dimension)
        else:
            losses = self._own_losses(labels, logits)
        weights = shapes.checked_weights(
            features, self._weight_column, logits, is_per_logit=self._may_weigh_logits
        )
        return labels, losses, weights


def add_regularization(loss: tf.Tensor, regularization_losses: Sequence[Any] | None) -> tf.Tensor:
    """Adds the sum of the regularization losses, if there are any."""
    return loss if regularization_losses is None else loss + tf.add_n(regularization_losses)


def write_loss(
    loss: tf.Tensor,
    regularization_losses: Sequence[Any] | None,
    key: Callable[[str], str] = str,
) -> None:
    """Writes the summaries of a head in TRAIN: the loss, and the regularization's part of it."""
    with v1.name_scope(""):
        v1.summary.scalar(key("loss"), loss)
        if regularization_losses is not None:
            v1.summary.scalar(key(REGULARIZATION_LOSS), tf.add_n(regularization_losses))
