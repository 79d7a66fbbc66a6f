"""Canned estimators: complete models over feature columns."""

from tfdist.estimator.canned.baseline import (
    BaselineClassifier,
    BaselineEstimator,
    BaselineRegressor,
)
from tfdist.estimator.canned.dnn import DNNClassifier, DNNEstimator, DNNRegressor
from tfdist.estimator.canned.dnn_linear_combined import (
    DNNLinearCombinedClassifier,
    DNNLinearCombinedEstimator,
    DNNLinearCombinedRegressor,
)
from tfdist.estimator.canned.feature_columns import (
    classifier_parse_example_spec,
    regressor_parse_example_spec,
)
from tfdist.estimator.canned.linear import LinearClassifier, LinearEstimator, LinearRegressor

__all__ = [
    "BaselineClassifier",
    "BaselineEstimator",
    "BaselineRegressor",
    "DNNClassifier",
    "DNNEstimator",
    "DNNLinearCombinedClassifier",
    "DNNLinearCombinedEstimator",
    "DNNLinearCombinedRegressor",
    "DNNRegressor",
    "LinearClassifier",
    "LinearEstimator",
    "LinearRegressor",
    "classifier_parse_example_spec",
    "regressor_parse_example_spec",
]


def __dir__() -> list[str]:
    return [*__all__]
