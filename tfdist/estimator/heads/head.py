"""What every head can do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from tfdist.estimator.spec import EstimatorSpec

Metrics = dict[str, Any]


class Head(ABC):
    """The last part of a model: turns logits into loss, metrics, predictions and export outputs.

    A model_fn computes logits of `head.logits_dimension` and returns `head.create_estimator_spec`.
    `loss`, `predictions`, `metrics` and `update_metrics` also work alone, eagerly too.
    """

    @property
    @abstractmethod
    def name(self) -> str | None:
        """The suffix of this head's metrics and summaries; None adds none."""

    @property
    @abstractmethod
    def logits_dimension(self) -> Any:
        """The size of the last dimension of the logits that this head expects."""

    @property
    @abstractmethod
    def loss_reduction(self) -> str:
        """How the loss is reduced over the batch: one of `tf.losses.Reduction`."""

    @abstractmethod
    def loss(
        self,
        labels: Any,
        logits: Any,
        features: Any = None,
        mode: str | None = None,
        regularization_losses: Sequence[Any] | None = None,
    ) -> Any:
        """Returns the scalar loss of a batch, with the regularization losses added.

        Args:
          labels: The batch's labels.
          logits: The model's output for the batch.
          features: Dict of the batch's features; a weight column is looked up in it.
          mode: One of `ModeKeys`, for heads whose loss depends on it.
          regularization_losses: Scalars to add.
        """

    @abstractmethod
    def predictions(self, logits: Any, keys: Sequence[str] | None = None) -> dict[Any, Any]:
        """Returns predictions by name; `keys` chooses some of them, None is all."""

    @abstractmethod
    def metrics(self, regularization_losses: Sequence[Any] | None = None) -> Metrics:
        """Makes the metric objects by name, without a value yet."""

    @abstractmethod
    def update_metrics(
        self,
        eval_metrics: Metrics,
        features: Any,
        logits: Any,
        labels: Any,
        mode: str | None = None,
        regularization_losses: Sequence[Any] | None = None,
    ) -> Metrics:
        """Lets the metric objects see a batch, and returns them."""

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
        """Returns what a model_fn returns.

        Args:
          features: Dict of the batch's features.
          mode: One of `ModeKeys`.
          logits: The model's output.
          labels: Needed in TRAIN and EVAL.
          optimizer: For TRAIN: a tf_keras optimizer or a `tf.compat.v1.train.Optimizer`. Over
            several workers it trains as one worker with all their batches would, as long as the
            loss is a mean or sum over the batch and no regularization loss is added to a sum.
          trainable_variables: List or tuple of what the optimizer updates; a v1 optimizer takes
            the graph's trainable variables if it is None.
          train_op_fn: For TRAIN in place of an optimizer: from the loss to the train op. A Keras
            optimizer in it must get the loss divided by the number of workers.
          update_ops: List or tuple of ops to run in each step, such as those of batch norm.
          regularization_losses: Scalars to add to the loss.

        Raises:
          ValueError: If labels, logits or weights do not fit each other, or in TRAIN there is not
            exactly one of optimizer and train_op_fn.
        """
        raise NotImplementedError(
            "Subclasses of Head must implement `create_estimator_spec()`: "
            f"{type(self).__name__} does not."
        )

    def _summary_key(self, key: str) -> str:
        return f"{key}/{self.name}" if self.name else key
