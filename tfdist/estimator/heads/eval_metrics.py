"""What heads measure in an evaluation: Keras 2 metrics, and what each is shown of a batch."""

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
    """A batch with what the head makes of it; all have the leading dimensions [D0, D1, ... DN].

    Attributes:
      labels: Checked labels, class ids or numbers.
      losses: The loss of each label, not weighted.
      weights: float32 weights that broadcast to the losses; None means 1.
      predictions: By name.
    """

    labels: tf.Tensor
    losses: tf.Tensor
    weights: tf.Tensor | None
    predictions: dict[str, tf.Tensor]


@dataclass(frozen=True)
class Measure:
    """One metric.

    Attributes:
      key: Its name in the results.
      make: Makes the metric object from `name`.
      inputs: What `update_state` gets of a batch, apart from the weights.
    """

    key: str
    make: Callable[..., Any]
    inputs: Callable[[Scored], tuple[Any, ...]]


class MajorityAccuracy(Mean):  # type: ignore[misc]
    """The accuracy of always naming the more frequent of two classes; sees labels in [0, 1]."""

    def result(self) -> tf.Tensor:
        larger = tf.maximum(self.total, self.count - self.total)
        return tf.math.divide_no_nan(larger, self.count)


def average_loss() -> Measure:
    """The mean loss of an example, where 'loss' is the mean over steps."""
    return Measure("average_loss", Mean, lambda batch: (batch.losses,))


def measures_at_thresholds(
    thresholds: Iterable[float], inputs: Callable[[Scored], tuple[Any, ...]]
) -> list[Measure]:
    """Accuracy, precision and recall where scores above a threshold mean yes."""
    found = []
    for threshold in thresholds:
        for name, make in (
            ("accuracy", partial(BinaryAccuracy, threshold=threshold)),
            ("precision", partial(Precision, thresholds=threshold)),
            ("recall", partial(Recall, thresholds=threshold)),
        ):
            found.append(Measure(f"{name}/positive_threshold_{threshold:g}", make, inputs))
    return found
