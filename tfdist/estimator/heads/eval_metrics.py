"""The metrics of heads in an evaluation: Keras 2 metrics, and the inputs of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import tensorflow as tf
from tf_keras.metrics import AUC, BinaryAccuracy, Mean, Precision, Recall

AucOfPrecisionAndRecall = partial(AUC, curve="PR")


@dataclass(frozen=True, kw_only=True)
class Scored:
    """The labels, losses, weights and predictions of one batch.

    All tensors have the leading dimensions [D0, D1, ... DN].

    Attributes:
      labels: Checked labels: class ids or numbers.
      losses: The unweighted loss of each label.
      weights: float32 weights that can be broadcast to the losses. None means 1.
      predictions: Predictions by name.
    """

    labels: tf.Tensor
    losses: tf.Tensor
    weights: tf.Tensor | None
    predictions: dict[str, tf.Tensor]


@dataclass(frozen=True)
class Measure:
    """One metric of a head.

    Attributes:
      key: Name of the metric in the results.
      make: Function of `name` that makes the metric object.
      inputs: Function that returns the arguments of `update_state` for a batch, apart from the
        weights.
    """

    key: str
    make: Callable[..., Any]
    inputs: Callable[[Scored], tuple[Any, ...]]


class MajorityAccuracy(Mean):  # type: ignore[misc]
    """The accuracy of always predicting the more frequent of two classes.

    Its inputs are labels in [0, 1].
    """

    def result(self) -> tf.Tensor:
        larger = tf.maximum(self.total, self.count - self.total)  # []
        return tf.math.divide_no_nan(larger, self.count)


# The mean over examples; "loss" is a mean over steps.
AVERAGE_LOSS = Measure("average_loss", Mean, lambda batch: (batch.losses,))


def measures_at_thresholds(
    thresholds: Iterable[float], inputs: Callable[[Scored], tuple[Any, ...]]
) -> list[Measure]:
    """Returns accuracy, precision and recall at each threshold.

    A score above the threshold is a positive prediction.
    """
    return [
        Measure(f"{name}/positive_threshold_{threshold:g}", make, inputs)
        for threshold in thresholds
        for name, make in (
            ("accuracy", partial(BinaryAccuracy, threshold=threshold)),
            ("precision", partial(Precision, thresholds=threshold)),
            ("recall", partial(Recall, thresholds=threshold)),
        )
    ]
