"""Heads, which turn a model's logits into loss, metrics, predictions and export outputs."""

from tfdist.estimator.heads.classification import (
    BinaryClassHead,
    MultiClassHead,
    binary_or_multi_class_head,
)
from tfdist.estimator.heads.head import Head
from tfdist.estimator.heads.multi_head import MultiHead
from tfdist.estimator.heads.multi_label import MultiLabelHead
from tfdist.estimator.heads.regression import (
    LogisticRegressionHead,
    PoissonRegressionHead,
    RegressionHead,
)

__all__ = [
    "BinaryClassHead",
    "Head",
    "LogisticRegressionHead",
    "MultiClassHead",
    "MultiHead",
    "MultiLabelHead",
    "PoissonRegressionHead",
    "RegressionHead",
    "binary_or_multi_class_head",
]


def __dir__() -> list[str]:
    return [*__all__]
