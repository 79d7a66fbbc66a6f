"""Baseline models of tf.compat.v1.estimator, which ignore the features."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from tfdist.estimator.canned.baseline import baseline_tower
from tfdist.estimator.heads.v1_heads import SUM, classifier_head, regressor_head
from tfdist.estimator.run_config import RunConfig
from tfdist.estimator.v1.model import CannedV1Estimator


class BaselineEstimator(CannedV1Estimator):
    """`tfdist.estimator.BaselineEstimator` with v1 optimizers.

    Args:
      optimizer: A name (learning rate 0.3), a v1 optimizer, or a function that returns one.
    """

    def __init__(
        self,
        head: Any,
        model_dir: str | os.PathLike[str] | None = None,
        optimizer: Any = "Ftrl",
        config: RunConfig | None = None,
    ) -> None:
        super().__init__(head, [baseline_tower(optimizer)], model_dir, config)


class BaselineClassifier(CannedV1Estimator):
    """`tfdist.estimator.BaselineClassifier` with v1 optimizers and a summed loss."""

    def __init__(
        self,
        model_dir: str | os.PathLike[str] | None = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Sequence[str] | None = None,
        optimizer: Any = "Ftrl",
        config: RunConfig | None = None,
        loss_reduction: str = SUM,
    ) -> None:
        head = classifier_head(n_classes, weight_column, label_vocabulary, loss_reduction)
        super().__init__(head, [baseline_tower(optimizer, weight_column)], model_dir, config)


class BaselineRegressor(CannedV1Estimator):
    """`tfdist.estimator.BaselineRegressor` with v1 optimizers and a summed loss."""

    def __init__(
        self,
        model_dir: str | os.PathLike[str] | None = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        optimizer: Any = "Ftrl",
        config: RunConfig | None = None,
        loss_reduction: str = SUM,
    ) -> None:
        head = regressor_head(label_dimension, weight_column, loss_reduction)
        super().__init__(head, [baseline_tower(optimizer, weight_column)], model_dir, config)
