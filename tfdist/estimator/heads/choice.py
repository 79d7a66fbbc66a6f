"""The head of a classifier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tfdist.estimator.heads.binary_class import BinaryClassHead
from tfdist.estimator.heads.multi_class import MultiClassHead


def binary_or_multi_class_head(
    n_classes: Any,
    weight_column: Any,
    label_vocabulary: Sequence[str] | None,
    loss_reduction: str,
) -> BinaryClassHead | MultiClassHead:
    """Makes the head that suits the number of classes; for the canned classifiers."""
    if n_classes == 2:
        return BinaryClassHead(
            weight_column=weight_column,
            label_vocabulary=label_vocabulary,
            loss_reduction=loss_reduction,
        )
    return MultiClassHead(
        n_classes,
        weight_column=weight_column,
        label_vocabulary=label_vocabulary,
        loss_reduction=loss_reduction,
    )
