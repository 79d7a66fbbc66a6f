"""Linear models of tf.compat.v1.estimator, with v1 optimizers and summed losses."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from tfdist.estimator.canned.linear import linear_tower
from tfdist.estimator.checkpoints.warm_start import WarmStartFrom
from tfdist.estimator.heads.v1_heads import SUM, classifier_head, regressor_head
from tfdist.estimator.run_config import RunConfig
from tfdist.estimator.v1.model import CannedV1Estimator


class LinearEstimator(CannedV1Estimator):
    """`tfdist.estimator.LinearEstimator` with v1 optimizers.

    Args:
      optimizer: A name (learning rate 0.2), a v1 optimizer, a function that returns one, or None.
        None has the same meaning as in `tfdist.estimator.LinearEstimator`.
      partitioner: Partitioner of the weights. None leaves them whole.
    """

    def __init__(
        self,
        head: Any,
        feature_columns: Any,
        model_dir: str | os.PathLike[str] | None = None,
        optimizer: Any = "Ftrl",
        config: RunConfig | None = None,
        partitioner: Any = None,
        sparse_combiner: str = "sum",
        warm_start_from: WarmStartFrom = None,
    ) -> None:
        tower = linear_tower(feature_columns, optimizer, sparse_combiner)
        super().__init__(head, [tower], model_dir, config, warm_start_from, partitioner)


class LinearClassifier(CannedV1Estimator):
    """`tfdist.estimator.LinearClassifier` with v1 optimizers and a summed loss.

    Args:
      partitioner: As in `LinearEstimator`.
    """

    def __init__(
        self,
        feature_columns: Any,
        model_dir: str | os.PathLike[str] | None = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Sequence[str] | None = None,
        optimizer: Any = "Ftrl",
        config: RunConfig | None = None,
        partitioner: Any = None,
        warm_start_from: WarmStartFrom = None,
        loss_reduction: str = SUM,
        sparse_combiner: str = "sum",
    ) -> None:
        head = classifier_head(n_classes, weight_column, label_vocabulary, loss_reduction)
        tower = linear_tower(feature_columns, optimizer, sparse_combiner)
        super().__init__(head, [tower], model_dir, config, warm_start_from, partitioner)


class LinearRegressor(CannedV1Estimator):
    """`tfdist.estimator.LinearRegressor` with v1 optimizers and a summed loss.

    Args:
      partitioner: As in `LinearEstimator`.
    """

    def __init__(
        self,
        feature_columns: Any,
        model_dir: str | os.PathLike[str] | None = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        optimizer: Any = "Ftrl",
        config: RunConfig | None = None,
        partitioner: Any = None,
        warm_start_from: WarmStartFrom = None,
        loss_reduction: str = SUM,
        sparse_combiner: str = "sum",
    ) -> None:
        head = regressor_head(label_dimension, weight_column, loss_reduction)
        tower = linear_tower(feature_columns, optimizer, sparse_combiner)
        super().__init__(head, [tower], model_dir, config, warm_start_from, partitioner)
