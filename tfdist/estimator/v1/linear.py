"""Linear models of tf.compat.v1.estimator: v1 optimizers, summed losses."""

from __future__ import annotations

import math
from typing import Any

import tensorflow.compat.v1 as v1

from tfdist.estimator.canned.linear import LEARNING_RATE
from tfdist.estimator.canned.tower import check_features, v1_optimizer_maker
from tfdist.estimator.spec import EstimatorSpec
from tfdist.estimator.v1 import model
from tfdist.estimator.v1.estimator import Estimator
from tfdist.estimator.v1.model import linear_logit_fn_builder


class LinearEstimator(Estimator):
    """A linear model with a head of the user's.

    Args:
      head: A head of `tfdist.estimator`.
      feature_columns: Dense and categorical columns.
      model_dir: Folder of checkpoints and event files.
      optimizer: A name ("Adagrad", "Adam", "Ftrl", "RMSProp", "SGD"; learning rate 0.2), a v1
        optimizer, or a function that returns one. None is Ftrl with a learning rate of 0.2, or one
        over the square root of the number of columns if that is smaller.
      config: A `RunConfig`.
      partitioner: Divides the weights; None leaves them whole.
      sparse_combiner: How the weights of an example's ids are combined: "sum", "mean" or "sqrtn".
      warm_start_from: A path or `WarmStartSettings`.
    """

    def __init__(
        self,
        head: Any,
        feature_columns: Any,
        model_dir: Any = None,
        optimizer: Any = "Ftrl",
        config: Any = None,
        partitioner: Any = None,
        sparse_combiner: str = "sum",
        warm_start_from: Any = None,
    ) -> None:
        columns = tuple(feature_columns or ())
        rate = LEARNING_RATE
        if optimizer is None:
            optimizer, rate = "Ftrl", min(rate, 1.0 / math.sqrt(max(len(columns), 1)))
        maker = v1_optimizer_maker(optimizer, rate)

        def model_fn(features: Any, labels: Any, mode: str, config: Any) -> EstimatorSpec:
            check_features(features)
            logit_fn = linear_logit_fn_builder(head.logits_dimension, columns, sparse_combiner)
            divide = partitioner or model.partitioner(config, model.SLICE_BYTES)
            with v1.variable_scope("linear", partitioner=divide):
                logits = logit_fn(features)
                return model.create_spec(head, features, labels, mode, logits, maker)

        super().__init__(
            model_fn, model_dir=model_dir, config=config, warm_start_from=warm_start_from
        )


class LinearClassifier(LinearEstimator):
    """A linear model that tells two or more classes apart; softmax or sigmoid cross entropy.

    Args:
      feature_columns: As in `LinearEstimator`, and so are the arguments that are not listed here.
      n_classes: Number of classes; labels are integers below it unless there is a vocabulary.
      weight_column: Name of a feature, or numeric column, that weighs each example's loss.
      label_vocabulary: The labels, if they are strings.
      loss_reduction: A `tf.compat.v1.losses.Reduction` other than NONE.
    """

    def __init__(
        self,
        feature_columns: Any,
        model_dir: Any = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Any = None,
        optimizer: Any = "Ftrl",
        config: Any = None,
        partitioner: Any = None,
        warm_start_from: Any = None,
        loss_reduction: str = model.SUM,
        sparse_combiner: str = "sum",
    ) -> None:
        super().__init__(
            model.classifier_head(n_classes, weight_column, label_vocabulary, loss_reduction),
            feature_columns,
            model_dir=model_dir,
            optimizer=optimizer,
            config=config,
            partitioner=partitioner,
            sparse_combiner=sparse_combiner,
            warm_start_from=warm_start_from,
        )


class LinearRegressor(LinearEstimator):
    """A linear model of numbers; squared error.

    Args:
      feature_columns: As in `LinearEstimator`, and so are the arguments that are not listed here.
      label_dimension: Numbers to predict for an example.
      weight_column: Name of a feature, or numeric column, that weighs each example's loss.
      loss_reduction: A `tf.compat.v1.losses.Reduction` other than NONE.
    """

    def __init__(
        self,
        feature_columns: Any,
        model_dir: Any = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        optimizer: Any = "Ftrl",
        config: Any = None,
        partitioner: Any = None,
        warm_start_from: Any = None,
        loss_reduction: str = model.SUM,
        sparse_combiner: str = "sum",
    ) -> None:
        super().__init__(
            model.regressor_head(label_dimension, weight_column, loss_reduction),
            feature_columns,
            model_dir=model_dir,
            optimizer=optimizer,
            config=config,
            partitioner=partitioner,
            sparse_combiner=sparse_combiner,
            warm_start_from=warm_start_from,
        )
