"""The canned estimators of tf.compat.v1.estimator: v1 optimizers, summed losses, older names."""

from tfdist.estimator.canned.v1.baseline import (
    BaselineClassifier,
    BaselineEstimator,
    BaselineRegressor,
)
from tfdist.estimator.canned.v1.dnn import (
    DNNClassifier,
    DNNEstimator,
    DNNRegressor,
)
from tfdist.estimator.canned.v1.dnn_linear_combined import (
    DNNLinearCombinedClassifier,
    DNNLinearCombinedEstimator,
    DNNLinearCombinedRegressor,
)
from tfdist.estimator.canned.v1.linear import (
    LinearClassifier,
    LinearEstimator,
    LinearRegressor,
)
from tfdist.estimator.canned.v1.logits import dnn_logit_fn_builder, linear_logit_fn_builder

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
    "dnn_logit_fn_builder",
    "linear_logit_fn_builder",
]
