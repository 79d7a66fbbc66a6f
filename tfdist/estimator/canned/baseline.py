"""Baseline models, which ignore the features and learn one number for each logit."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.estimator.canned.layers import Layers
from tfdist.estimator.canned.tower import CannedEstimator, Tower
from tfdist.estimator.config.run_config import RunConfig
from tfdist.estimator.heads import checks
from tfdist.estimator.heads.classification import classifier_head
from tfdist.estimator.heads.regression import RegressionHead


def baseline_tower(optimizer: Any, weight_column: Any = None) -> Tower:
    """Returns a tower with the same logits, a bias, for every example.

    The bias is the variable baseline/bias, float32 [units]. From the features, but for that of
    `weight_column`, only the batch size is used. It must be the same for all of them.
    """

    def build(layers: Layers, features: dict[str, Any], mode: str, units: int) -> tf.Tensor:
        weight_key = None if weight_column is None else checks.key_of(weight_column)
        with v1.variable_scope("baseline"):
            # Made before the checks, so that its initialization does not wait for a batch.
            bias = v1.get_variable("bias", [units], initializer=v1.zeros_initializer())
            layers.variables.append(bias)
            sizes = [v1.shape(value)[0] for key, value in features.items() if key != weight_key]
            equal = [v1.debugging.assert_equal(sizes[0], size) for size in sizes[1:]]
            with tf.control_dependencies(equal):
                return tf.multiply(bias, tf.ones([sizes[0], units]))  # [batch, units]

    return Tower("baseline", build, optimizer, 0.3)


class BaselineEstimator(CannedEstimator):
    """A model that learns one number for each logit and ignores the features.

    The head is given by the user.

    Args:
      head: A head of `tfdist.estimator`.
      model_dir: Folder of checkpoints and event files.
      optimizer: A name ("Adagrad", "Adam", "Ftrl", "RMSProp", "SGD"; learning rate 0.3), a Keras
        or v1 optimizer, or a function that returns one.
      config: A `RunConfig`.
    """

    def __init__(
        self,
        head: Any,
        model_dir: str | os.PathLike[str] | None = None,
        optimizer: Any = "Ftrl",
        config: RunConfig | None = None,
    ) -> None:
        super().__init__(head, [baseline_tower(optimizer)], model_dir, config)


class BaselineClassifier(CannedEstimator):
    """A classifier that ignores the features and learns the frequency of each class.

    Args:
      model_dir: Folder of checkpoints and event files.
      n_classes: Number of classes. Without a vocabulary, labels are integers in [0, n_classes).
      weight_column: Name of a feature, or a numeric column, with the weight of each example's loss.
      label_vocabulary: List of the labels, if they are strings.
      optimizer: A name ("Adagrad", "Adam", "Ftrl", "RMSProp", "SGD"; learning rate 0.3), a Keras or
        v1 optimizer, or a function that returns one.
      config: A `RunConfig`.
      loss_reduction: A `tf.losses.Reduction` other than NONE.
    """

    def __init__(
        self,
        model_dir: str | os.PathLike[str] | None = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Sequence[str] | None = None,
        optimizer: Any = "Ftrl",
        config: RunConfig | None = None,
        loss_reduction: str = checks.MEAN,
    ) -> None:
        head = classifier_head(n_classes, weight_column, label_vocabulary, loss_reduction)
        super().__init__(head, [baseline_tower(optimizer, weight_column)], model_dir, config)


class BaselineRegressor(CannedEstimator):
    """A regressor that ignores the features and learns the mean of the labels.

    Args:
      model_dir: Folder of checkpoints and event files.
      label_dimension: Number of values to predict for each example.
      weight_column: Name of a feature, or a numeric column, with the weight of each example's loss.
      optimizer: A name ("Adagrad", "Adam", "Ftrl", "RMSProp", "SGD"; learning rate 0.3), a Keras or
        v1 optimizer, or a function that returns one.
      config: A `RunConfig`.
      loss_reduction: A `tf.losses.Reduction` other than NONE.
    """

    def __init__(
        self,
        model_dir: str | os.PathLike[str] | None = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        optimizer: Any = "Ftrl",
        config: RunConfig | None = None,
        loss_reduction: str = checks.MEAN,
    ) -> None:
        head = RegressionHead(label_dimension, weight_column, loss_reduction)
        super().__init__(head, [baseline_tower(optimizer, weight_column)], model_dir, config)
