"""Models of tf.compat.v1.estimator that ignore the features."""

from __future__ import annotations

from typing import Any

from tfdist.estimator.canned.baseline import LEARNING_RATE, baseline_logits
from tfdist.estimator.canned.tower import check_features, v1_optimizer_maker
from tfdist.estimator.spec import EstimatorSpec
from tfdist.estimator.v1 import model
from tfdist.estimator.v1.estimator import Estimator


def _model_fn(head: Any, optimizer: Any, weight_column: Any = None) -> Any:
    maker = v1_optimizer_maker(optimizer, LEARNING_RATE)

    def model_fn(features: Any, labels: Any, mode: str) -> EstimatorSpec:
        check_features(features)
        logits = baseline_logits(features, head.logits_dimension, weight_column).values
        return model.create_spec(head, features, labels, mode, logits, maker)

    return model_fn


class BaselineEstimator(Estimator):
    """One number for each logit, whatever the features are, with a head of the user's.

    Args:
      head: A head of `tfdist.estimator`.
      model_dir: Folder of checkpoints and event files.
      optimizer: A name ("Adagrad", "Adam", "Ftrl", "RMSProp", "SGD"; learning rate 0.3), a v1
        optimizer, or a function that returns one.
      config: A `RunConfig`.
    """

    def __init__(
        self, head: Any, model_dir: Any = None, optimizer: Any = "Ftrl", config: Any = None
    ) -> None:
        super().__init__(_model_fn(head, optimizer), model_dir=model_dir, config=config)


class BaselineClassifier(Estimator):
    """Learns how frequent each class is.

    Args:
      model_dir: As in `BaselineEstimator`, and so are the arguments that are not listed here.
      n_classes: Number of classes; labels are integers below it unless there is a vocabulary.
      weight_column: Name of a feature, or numeric column, that weighs each example's loss.
      label_vocabulary: The labels, if they are strings.
      loss_reduction: A `tf.compat.v1.losses.Reduction` other than NONE.
    """

    def __init__(
        self,
        model_dir: Any = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Any = None,
        optimizer: Any = "Ftrl",
        config: Any = None,
        loss_reduction: str = model.SUM,
    ) -> None:
        head = model.classifier_head(n_classes, weight_column, label_vocabulary, loss_reduction)
        model_fn = _model_fn(head, optimizer, weight_column)
        super().__init__(model_fn, model_dir=model_dir, config=config)


class BaselineRegressor(Estimator):
    """Learns the mean of the labels.

    Args:
      model_dir: As in `BaselineEstimator`, and so are the arguments that are not listed here.
      label_dimension: Numbers to predict for an example.
      weight_column: Name of a feature, or numeric column, that weighs each example's loss.
      loss_reduction: A `tf.compat.v1.losses.Reduction` other than NONE.
    """

    def __init__(
        self,
        model_dir: Any = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        optimizer: Any = "Ftrl",
        config: Any = None,
        loss_reduction: str = model.SUM,
    ) -> None:
        head = model.regressor_head(label_dimension, weight_column, loss_reduction)
        model_fn = _model_fn(head, optimizer, weight_column)
        super().__init__(model_fn, model_dir=model_dir, config=config)
