"""`tensorflow_estimator.python.estimator.canned`: keys, optimizers, and the network's model_fn.

They are what the canned estimators and heads of libraries need.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.estimator.canned.dnn import dnn_tower
from tfdist.estimator.canned.layers import Activation
from tfdist.estimator.canned.tower import make_model_fn
from tfdist.estimator.config.run_config import RunConfig
from tfdist.estimator.spec import EstimatorSpec
from tfdist.estimator.v1.tpu import TPUEstimatorSpec


class PredictionKeys:
    """The keys of the predictions of heads."""

    CLASSES = "classes"
    CLASS_IDS = "class_ids"
    ALL_CLASSES = "all_classes"
    ALL_CLASS_IDS = "all_class_ids"
    LOGISTIC = "logistic"
    LOGITS = "logits"
    PREDICTIONS = "predictions"
    PROBABILITIES = "probabilities"


class MetricKeys:
    """The keys of the results of an evaluation."""

    LOSS = "loss"
    LOSS_MEAN = "average_loss"
    LOSS_REGULARIZATION = "regularization_loss"
    ACCURACY = "accuracy"
    ACCURACY_BASELINE = "accuracy_baseline"
    AUC = "auc"
    AUC_PR = "auc_precision_recall"
    LABEL_MEAN = "label/mean"
    PRECISION = "precision"
    PREDICTION_MEAN = "prediction/mean"
    RECALL = "recall"


class _Head:
    """The base class of heads of TensorFlow 1: a subclass has its members."""

    def create_estimator_spec(self, *args: Any, **kwargs: Any) -> EstimatorSpec:
        raise NotImplementedError(f"{type(self).__name__} has no create_estimator_spec.")


_OPTIMIZERS = {
    "Adagrad": v1.train.AdagradOptimizer,
    "Adam": v1.train.AdamOptimizer,
    "Ftrl": v1.train.FtrlOptimizer,
    "RMSProp": v1.train.RMSPropOptimizer,
    "SGD": v1.train.GradientDescentOptimizer,
}


def get_optimizer_instance(opt: Any, learning_rate: float | None = None) -> v1.train.Optimizer:
    """Returns an optimizer of TensorFlow 1.

    Args:
      opt: The optimizer, a function without arguments that returns it, or its name.
      learning_rate: For a name.

    Raises:
      ValueError: For anything else, and for a name without a learning rate.
    """
    if isinstance(opt, str):
        if opt not in _OPTIMIZERS:
            raise ValueError(
                f"Unsupported optimizer name: {opt}. Supported names are: {sorted(_OPTIMIZERS)}"
            )
        if not learning_rate:
            raise ValueError("learning_rate must be specified when opt is string.")
        return _OPTIMIZERS[opt](learning_rate=learning_rate)
    made = opt() if callable(opt) else opt
    if not isinstance(made, v1.train.Optimizer):
        raise ValueError(
            f"The given object is not an Optimizer instance. Given: {made!r}. Give one of "
            "tf.compat.v1.train, or its name."
        )
    return made


class _Gauge:
    """TensorFlow's counter of its users: libraries set it, and nothing is counted here."""

    def get_cell(self, *labels: str) -> _Gauge:
        return self

    def set(self, value: object) -> None:
        pass


_canned_estimator_api_gauge = _Gauge()
_TPUEstimatorSpec = TPUEstimatorSpec


def dnn_model_fn_v2(
    features: Any,
    labels: Any,
    mode: str,
    head: Any,
    hidden_units: Sequence[int],
    feature_columns: Any,
    optimizer: Any = "Adagrad",
    activation_fn: Activation = tf.nn.relu,
    dropout: float | None = None,
    config: RunConfig | None = None,
    use_tpu: bool = False,
    batch_norm: bool = False,
) -> EstimatorSpec:
    """Builds the network of a DNNEstimator: the body of its model_fn.

    From `head` on, arguments are as in `DNNEstimator`; `config` and `use_tpu` have no effect.
    """
    tower = dnn_tower(feature_columns, optimizer, hidden_units, activation_fn, dropout, batch_norm)
    return make_model_fn(head, [tower])(features, labels, mode)
