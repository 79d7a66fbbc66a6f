"""A model that ignores the features: one number for each logit."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.estimator.canned.tower import Logits, Tower, keras_optimizer_maker, make_model_fn
from tfdist.estimator.estimator import Estimator
from tfdist.estimator.heads import RegressionHead, binary_or_multi_class_head, checks

LEARNING_RATE = 0.3


def baseline_logits(features: dict[str, Any], units: int, weight_column: Any) -> Logits:
    """Builds logits that are the variable baseline/bias, float32 [units], for every example.

    Args:
      features: Batches by name; only their size is used, which must be the same for all.
      units: Logits of an example.
      weight_column: Name or numeric column of a feature that is no part of the batch.

    Raises:
      TypeError: If weight_column is neither.
    """
    weight_key = _key_of(weight_column)
    # Before the checks: its initialisation must not wait for a batch.
    bias = v1.get_variable("baseline/bias", [units], initializer=v1.zeros_initializer())
    sizes = [v1.shape(value)[0] for key, value in features.items() if key != weight_key]
    checks = [v1.debugging.assert_equal(sizes[0], size) for size in sizes[1:]]
    with tf.control_dependencies(checks):
        return Logits(values=bias * tf.ones([sizes[0], units]), variables=[bias])


def _key_of(weight_column: Any) -> str | None:
    if weight_column is None or isinstance(weight_column, str):
        return weight_column
    if not (hasattr(weight_column, "normalizer_fn") and isinstance(weight_column.key, str)):
        raise TypeError(
            "Weight column must be either a string or NumericColumn. Given type: "
            f"{type(weight_column)}."
        )
    return str(weight_column.key)


def _model_fn(head: Any, optimizer: Any, weight_column: Any = None) -> Any:
    def build(features: dict[str, Any], mode: str, units: int) -> Logits:
        return baseline_logits(features, units, weight_column)

    maker = keras_optimizer_maker(optimizer, LEARNING_RATE)
    return make_model_fn(head, [Tower(build=build, make_optimizer=maker)])


class BaselineEstimator(Estimator):
    """One number for each logit, whatever the features are, with a head of the user's.

    Args:
      head: A head of `tfdist.estimator`.
      model_dir: Folder of checkpoints and event files.
      optimizer: A name ("Adagrad", "Adam", "Ftrl", "RMSProp", "SGD"; learning rate 0.3), a Keras
        or v1 optimizer, or a function that returns one.
      config: A `RunConfig`.
    """

    def __init__(
        self, head: Any, model_dir: Any = None, optimizer: Any = "Ftrl", config: Any = None
    ) -> None:
        super().__init__(_model_fn(head, optimizer), model_dir=model_dir, config=config)


class BaselineClassifier(Estimator):
    """Learns how frequent each class is.

    Args:
      model_dir: Folder of checkpoints and event files.
      n_classes: Number of classes; labels are integers below it unless there is a vocabulary.
      weight_column: Name of a feature, or numeric column, that weighs each example's loss.
      label_vocabulary: The labels, if they are strings.
      optimizer: As in `BaselineEstimator`.
      config: A `RunConfig`.
      loss_reduction: A `tf.losses.Reduction` other than NONE.
    """

    def __init__(
        self,
        model_dir: Any = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Any = None,
        optimizer: Any = "Ftrl",
        config: Any = None,
        loss_reduction: str = checks.MEAN,
    ) -> None:
        head = binary_or_multi_class_head(
            n_classes,
            weight_column=weight_column,
            label_vocabulary=label_vocabulary,
            loss_reduction=loss_reduction,
        )
        model_fn = _model_fn(head, optimizer, weight_column)
        super().__init__(model_fn, model_dir=model_dir, config=config)


class BaselineRegressor(Estimator):
    """Learns the mean of the labels.

    Args:
      model_dir: Folder of checkpoints and event files.
      label_dimension: Numbers to predict for an example.
      weight_column: Name of a feature, or numeric column, that weighs each example's loss.
      optimizer: As in `BaselineEstimator`.
      config: A `RunConfig`.
      loss_reduction: A `tf.losses.Reduction` other than NONE.
    """

    def __init__(
        self,
        model_dir: Any = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        optimizer: Any = "Ftrl",
        config: Any = None,
        loss_reduction: str = checks.MEAN,
    ) -> None:
        head = RegressionHead(
            label_dimension=label_dimension,
            weight_column=weight_column,
            loss_reduction=loss_reduction,
        )
        model_fn = _model_fn(head, optimizer, weight_column)
        super().__init__(model_fn, model_dir=model_dir, config=config)
