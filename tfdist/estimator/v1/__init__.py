"""The names of `tf.compat.v1.estimator`.

The Estimator also has `export_savedmodel`. The canned estimators take v1 optimizers and sum the
losses of a batch, while `tf.estimator` takes the mean. All other names are the same objects
as in `tfdist.estimator`.
"""

from __future__ import annotations

import os
from typing import Any

import tfdist.estimator as v2
from tfdist.estimator.config.run_config import RunConfig
from tfdist.estimator.keras import conversion
from tfdist.estimator.v1 import experimental, tpu
from tfdist.estimator.v1.canned import (
    BaselineClassifier,
    BaselineEstimator,
    BaselineRegressor,
    DNNClassifier,
    DNNEstimator,
    DNNLinearCombinedClassifier,
    DNNLinearCombinedEstimator,
    DNNLinearCombinedRegressor,
    DNNRegressor,
    LinearClassifier,
    LinearEstimator,
    LinearRegressor,
)
from tfdist.estimator.v1.estimator import Estimator

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
    "Estimator",
    "LinearClassifier",
    "LinearEstimator",
    "LinearRegressor",
    "experimental",
    "model_to_estimator",
    "tpu",
]


def model_to_estimator(
    keras_model: Any = None,
    keras_model_path: Any = None,
    custom_objects: dict[str, Any] | None = None,
    model_dir: str | os.PathLike[str] | None = None,
    config: RunConfig | None = None,
    checkpoint_format: str | None = "saver",
    metric_names_map: dict[str, str] | None = None,
    export_outputs: dict[str, Any] | None = None,
) -> v2.Estimator:
    """Returns an Estimator as `tfdist.estimator.model_to_estimator` does.

    By default it saves variables by name (`checkpoint_format` "saver").

    Arguments as in `tfdist.estimator.model_to_estimator`: `keras_model`, `keras_model_path`,
    `custom_objects`, `model_dir`, `config`, `metric_names_map`, `export_outputs`.
    """
    return conversion.convert(Estimator, **locals())


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(v2, name)


def __dir__() -> list[str]:
    return sorted({*__all__, *v2.__all__})
