"""The base classes of heads: `Head`, `SpecHead` with an EstimatorSpec, `SingleHead` of one loss."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1
from tf_keras.metrics import Mean

from tfdist.estimator.config.arguments import call_with
from tfdist.estimator.heads import checks
from tfdist.estimator.heads.eval_metrics import Measure, Scored
from tfdist.estimator.heads.train_op import build_train_op, forget_dependent_variables
from tfdist.estimator.spec import EstimatorSpec, ModeKeys

Metrics = dict[str, Any]

REGULARIZATION_LOSS = "regularization_loss"
_V1_REDUCTIONS = {
    checks.SUM: v1.losses.Reduction.SUM,
    checks.MEAN: v1.losses.Reduction.SUM_OVER_BATCH_SIZE,
    checks.AUTO: v1.losses.Reduction.SUM_OVER_BATCH_SIZE,
}


class Head(ABC):
    """The last part of a model, which turns logits into loss, metrics, predictions and exports.

    A model_fn computes logits with a last dimension of `head.logits_dimension` and returns
    `head.create_estimator_spec(...)`. The methods `loss`, `predictions`, `metrics` and
    `update_metrics` can also be called separately, in a graph or eagerly.
    """

    @property
    @abstractmethod
    def name(self) -> str | None:
        """The suffix of this head's metrics and summaries, or None for no suffix."""

    @property
    @abstractmethod
    def logits_dimension(self) -> Any:
        """The size of the last dimension of the logits that this head expects."""

    @property
    @abstractmethod
    def loss_reduction(self) -> str:
        """The reduction of the loss over the batch, one of `tf.losses.Reduction`."""

    @abstractmethod
    def loss(
        self,
        labels: Any,
        logits: Any,
        features: Any = None,
        mode: str | None = None,
        regularization_losses: Sequence[tf.Tensor] | None = None,
    ) -> tf.Tensor:
        """Returns the scalar loss of a batch, including the regularization losses.

        Args:
          labels: The labels of the batch.
          logits: The model's output for the batch.
          features: Dict of the batch's features. The weight column is looked up in it.
          mode: One of `ModeKeys`, used by heads with a loss that depends on the mode.
          regularization_losses: Scalars to add to the loss.
        """

    @abstractmethod
    def predictions(self, logits: Any, keys: Sequence[Any] | None = None) -> dict[Any, Any]:
        """Returns the predictions named in `keys`, by name; None selects all.

        Args:
          logits: The logits, as `create_estimator_spec` takes them.
          keys: The names of the predictions, or None. A `MultiHead` has pairs (head name, name).
        """

    @abstractmethod
    def metrics(self, regularization_losses: Sequence[tf.Tensor] | None = None) -> Metrics:
        """Returns new metric objects by name, without a value yet.

        Args:
          regularization_losses: Scalars; a metric reports their sum. None leaves it out.
        """

    @abstractmethod
    def update_metrics(
        self,
        eval_metrics: Metrics,
        features: Any,
        logits: Any,
        labels: Any,
        mode: str | None = None,
        regularization_losses: Sequence[tf.Tensor] | None = None,
    ) -> Metrics:
        """Updates the metric objects with a batch and returns them.

        Args:
          eval_metrics: The result of `metrics`.
          features: The features of the batch.
          logits: Its logits.
          labels: Its labels.
          mode: One of `ModeKeys`.
          regularization_losses: As in `metrics`.
        """

    def create_estimator_spec(
        self,
        features: Any,
        mode: str,
        logits: Any,
        labels: Any = None,
        optimizer: Any = None,
        trainable_variables: Sequence[tf.Variable] | None = None,
        train_op_fn: Callable[[tf.Tensor], tf.Operation] | None = None,
        update_ops: Sequence[tf.Operation] | None = None,
        regularization_losses: Sequence[tf.Tensor] | None = None,
    ) -> EstimatorSpec:
        """Returns the `EstimatorSpec` for a model_fn to return.

        Args:
          features: Dict of the batch's features.
          mode: One of `ModeKeys`.
          logits: The model's output.
          labels: The labels of the batch. Required in TRAIN and EVAL.
          optimizer: For TRAIN: a tf_keras optimizer or a `tf.compat.v1.train.Optimizer`. Training
            on several workers is equivalent to training on one worker with all their batches, if
            the loss is a mean or a sum over the batch and no regularization loss is added to a
            sum.
          trainable_variables: List or tuple of the variables that the optimizer updates. If None, a
            v1 optimizer updates the graph's trainable variables.
          train_op_fn: For TRAIN, instead of an optimizer: a function of the loss that returns the
            train op. If it uses a Keras optimizer, it must give it the loss divided by the number
            of workers.
          update_ops: List or tuple of ops to run in each step, such as those of batch norm.
          regularization_losses: Scalars to add to the loss.

        Raises:
          ValueError: If labels, logits or weights do not fit each other, or if in TRAIN not exactly
            one of `optimizer` and `train_op_fn` is given.
        """
        raise NotImplementedError(
            "Subclasses of Head must implement `create_estimator_spec()`: "
            f"{type(self).__name__} does not."
        )

    def _summary_key(self, key: str) -> str:
        return f"{key}/{self.name}" if self.name else key


class SpecHead(Head):
    """A head that builds its EstimatorSpec from its loss, metrics and predictions."""

    _default_scope = "head"

    @abstractmethod
    def _outputs_to_serve(
        self, predictions: dict[Any, Any], features: Any, logits: Any, labels: Any
    ) -> dict[str, Any]:
        """Returns the export outputs of PREDICT by signature name."""

    def _begin_training(self, features: Any, mode: str, logits: Any, labels: Any) -> None:
        """Called in TRAIN before the train op is built."""

    def _loss_key(self, key: str) -> str:
        """Returns the tag of a summary of the loss."""
        return self._summary_key(key)

    def create_estimator_spec(
        self,
        features: Any,
        mode: str,
        logits: Any,
        labels: Any = None,
        optimizer: Any = None,
        trainable_variables: Sequence[tf.Variable] | None = None,
        train_op_fn: Callable[[tf.Tensor], tf.Operation] | None = None,
        update_ops: Sequence[tf.Operation] | None = None,
        regularization_losses: Sequence[tf.Tensor] | None = None,
    ) -> EstimatorSpec:
        forget_dependent_variables(optimizer)
        with v1.name_scope(self.name, self._default_scope):
            predictions = self.predictions(logits)
            if mode == ModeKeys.PREDICT:
                outputs = self._outputs_to_serve(predictions, features, logits, labels)
                return EstimatorSpec(mode, predictions=predictions, export_outputs=outputs)
            extra: Any = {"regularization_losses": regularization_losses}
            loss = self.loss(labels, logits, features=features, mode=mode, **extra)
            if mode == ModeKeys.EVAL:
                metrics = self.metrics(**extra)
                metrics = self.update_metrics(metrics, features, logits, labels, **extra)
                return EstimatorSpec(
                    mode, predictions=predictions, loss=loss, eval_metric_ops=metrics
                )
            self._begin_training(features, mode, logits, labels)
            train_op = build_train_op(
                loss,
                loss_reduction=self.loss_reduction,
                optimizer=optimizer,
                trainable_variables=trainable_variables,
                train_op_fn=train_op_fn,
                update_ops=update_ops,
            )
        write_loss(loss, regularization_losses, self._loss_key)
        return EstimatorSpec(ModeKeys.TRAIN, predictions=predictions, loss=loss, train_op=train_op)


class SingleHead(SpecHead):
    """A head with one tensor of logits, one tensor of labels and one loss.

    A subclass defines how labels are read, how the loss of an example is computed, and which
    predictions, metrics and export outputs there are. The arguments are as in its heads; without
    a loss_fn, the loss is the subclass's own.
    """

    def __init__(
        self,
        logits_dimension: int,
        weight_column: Any,
        loss_reduction: str,
        loss_fn: Callable[..., tf.Tensor] | None,
        name: str | None,
    ) -> None:
        checks.check_loss_reduction(loss_reduction)
        checks.check_loss_fn(loss_fn)
        self._logits_dimension = logits_dimension
        self._weight_column = weight_column
        self._loss_reduction = loss_reduction
        self._loss_fn = loss_fn
        self._name = name

    # Defined by subclasses.

    _loss_dimension = 1
    _may_weigh_logits = False
    _opens_loss_scope = True

    @abstractmethod
    def _read_labels(self, labels: Any, logits: tf.Tensor) -> tf.Tensor:
        """Checks the labels against the logits and converts them to numbers."""

    @abstractmethod
    def _predictions(self, logits: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns all predictions by name, given the checked logits."""

    @abstractmethod
    def _own_losses(self, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        """Returns the loss of each example, [D0, D1, ... DN, loss_dimension]."""

    @abstractmethod
    def _measures(self) -> list[Measure]:
        """Lists the metrics of an evaluation."""

    @abstractmethod
    def _export_outputs(self, predictions: dict[str, tf.Tensor]) -> dict[str, Any]:
        """Returns the export outputs by signature name."""

    # Common to all subclasses.

    @property
    def name(self) -> str | None:
        return self._name

    @property
    def logits_dimension(self) -> int:
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
        regularization_losses: Sequence[tf.Tensor] | None = None,
    ) -> tf.Tensor:
        scope = v1.name_scope("losses", values=(logits, labels))
        with scope if self._opens_loss_scope else nullcontext():
            logits = checks.checked_logits(logits, self.logits_dimension)
            _, losses, weights = self._losses_and_weights(labels, logits, features)
            # `compute_weighted_loss` also records the reduction in the graph. A v1 optimizer reads
            # it to decide whether to divide by the number of workers.
            loss = v1.losses.compute_weighted_loss(
                losses if weights is None else losses * weights,
                loss_collection=None,
                reduction=_V1_REDUCTIONS[self._loss_reduction],
            )
            return add_regularization(loss, regularization_losses)

    def predictions(self, logits: Any, keys: Sequence[Any] | None = None) -> dict[Any, Any]:
        logits = checks.checked_logits(logits, self.logits_dimension)
        with v1.name_scope("predictions", values=(logits,)):
            return selected(self._predictions(logits), keys)

    def metrics(self, regularization_losses: Sequence[tf.Tensor] | None = None) -> Metrics:
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
        regularization_losses: Sequence[tf.Tensor] | None = None,
    ) -> Metrics:
        predictions = self.predictions(logits)
        logits = checks.checked_logits(logits, self.logits_dimension)
        numbers, losses, weights = self._losses_and_weights(labels, logits, features)
        batch = Scored(labels=numbers, losses=losses, weights=weights, predictions=predictions)
        for measure in self._measures():
            metric = eval_metrics[self._summary_key(measure.key)]
            metric.update_state(*measure.inputs(batch), sample_weight=weights)
        if regularization_losses is not None:
            total = tf.add_n(regularization_losses)  # []
            eval_metrics[self._summary_key(REGULARIZATION_LOSS)].update_state(total)
        return eval_metrics

    def _outputs_to_serve(self, predictions: dict[Any, Any], *_: Any) -> dict[str, Any]:
        return self._export_outputs(predictions)

    def _losses_and_weights(
        self, labels: Any, logits: tf.Tensor, features: Any
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor | None]:
        """Returns the labels as numbers, their losses and their weights.

        The losses have the shape [D0, D1, ... DN, loss_dimension]. The weights are None without a
        weight column, otherwise [D0, D1, ... DN, 1] or the shape of the logits.
        """
        labels = self._read_labels(labels, logits)
        losses = self._losses(labels, logits, features)
        return labels, losses, self._weights(features, logits)

    def _losses(self, labels: tf.Tensor, logits: tf.Tensor, features: Any) -> tf.Tensor:
        """Returns the loss of each label, [D0, D1, ... DN, loss_dimension]."""
        if self._loss_fn:
            offered = {"labels": labels, "logits": logits, "features": features}
            losses = call_with(self._loss_fn, offered)
            return checks.checked_losses(losses, logits, self._loss_dimension)
        return self._own_losses(labels, logits)

    def _weights(self, features: Any, logits: tf.Tensor) -> tf.Tensor | None:
        return checks.checked_weights(
            features, self._weight_column, logits, is_per_logit=self._may_weigh_logits
        )


def selected(predictions: dict[Any, Any], keys: Sequence[Any] | None) -> dict[Any, Any]:
    """Returns the predictions named in `keys`, None or none: all; ValueError for another name."""
    for key in keys or ():
        if key not in predictions:
            raise ValueError(
                f"Prediction key must be in PredictionKeys, given: {key}. Valid prediction "
                f"keys include {list(predictions)}."
            )
    return {k: v for k, v in predictions.items() if not keys or k in keys}


def add_regularization(
    loss: tf.Tensor, regularization_losses: Sequence[tf.Tensor] | None
) -> tf.Tensor:
    """Returns the loss plus the sum of the regularization losses, all scalars."""
    return loss if regularization_losses is None else loss + tf.add_n(regularization_losses)


def write_loss(
    loss: tf.Tensor,
    regularization_losses: Sequence[tf.Tensor] | None,
    key: Callable[[str], str] = str,
) -> None:
    """Writes a head's summaries in TRAIN: the loss, and the sum of the regularization losses."""
    with v1.name_scope(""):
        v1.summary.scalar(key("loss"), loss)
        if regularization_losses is not None:
            v1.summary.scalar(key(REGULARIZATION_LOSS), tf.add_n(regularization_losses))
