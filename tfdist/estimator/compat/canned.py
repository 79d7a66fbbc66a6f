"""`tensorflow_estimator.python.estimator.canned`: keys of results, and the network's model_fn.

They are what TensorFlow Privacy's canned estimators and heads need.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

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

    From `head` on, arguments are those of `DNNEstimator`; `config` and `use_tpu` have no effect.
    """
    tower = dnn_tower(feature_columns, optimizer, hidden_units, activation_fn, dropout, batch_norm)
    return make_model_fn(head, [tower])(features, labels, mode)
