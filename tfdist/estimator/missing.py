"""Names of tf.estimator that are not here: objects that tell at their use what to take instead.

Libraries import such names, and make subclasses of them, without using them in every program. So
the names can be imported; only their use is an error.
"""

from __future__ import annotations

import functools
from typing import Any, NoReturn

# The name below tf.estimator or tf.compat.v1.estimator, and what takes its place.
INSTEAD = {
    "experimental.LinearSDCA": "LinearClassifier with the default Ftrl",
    "experimental.RNNClassifier": "a model_fn with tf_keras.layers.LSTM or GRU",
    "experimental.RNNEstimator": "a model_fn with tf_keras.layers.LSTM or GRU",
    "experimental.KMeans": "scikit-learn's KMeans",
    "tpu.experimental.EmbeddingConfigSpec": "tf.nn.embedding_lookup in model_fn",
}
# Gone from TensorFlow 2.15 already.
_OLDER = {
    "BoostedTreesClassifier": "TensorFlow Decision Forests or XGBoost",
    "BoostedTreesEstimator": "TensorFlow Decision Forests or XGBoost",
    "BoostedTreesRegressor": "TensorFlow Decision Forests or XGBoost",
}


class _Missing(type):
    """The type of the objects: classes that cannot be used, but can have subclasses."""

    advice: str

    def __call__(cls, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(cls.advice)

    def __getattr__(cls, name: str) -> NoReturn:
        raise AttributeError(cls.advice if not name.startswith("__") else name)


@functools.cache
def missing(name: str, instead: str = "") -> Any:
    """Returns the object for a name that is not here.

    A call of it raises NotImplementedError, also that of a subclass; an attribute, AttributeError.

    Args:
      name: The full name in TensorFlow.
      instead: What to take instead; "" if there is no advice.
    """
    advice = f"{name} is not in tfdist." + (f" Use {instead}." if instead else "")
    return _Missing(name.rpartition(".")[2], (), {"advice": advice, "__doc__": advice})


def find_missing(module: str, name: str) -> Any:
    """Returns the object for a name of tf.estimator that is out, for a module's `__getattr__`.

    Args:
      module: The name of the module below tfdist.estimator, such as "experimental"; "" is itself.
      name: The attribute.

    Raises:
      AttributeError: If tf.estimator has no such name.
    """
    full = f"{module}.{name}" if module else name
    instead = INSTEAD.get(full, _OLDER.get(full))
    if instead is None:
        where = f"tfdist.estimator.{module}" if module else "tfdist.estimator"
        raise AttributeError(f"module {where!r} has no attribute {name!r}")
    return missing(f"tf.estimator.{full}", instead)
