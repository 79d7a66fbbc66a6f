"""The choice of the Keras version of `tf.keras`, made once, before its first use."""

from __future__ import annotations

import os
import sys
import warnings

_VARIABLE = "TF_USE_LEGACY_KERAS"


def choose() -> None:
    """Makes `tf.keras` Keras 2 unless the user set TF_USE_LEGACY_KERAS or Keras 3 is loaded.

    TensorFlow reads the variable at the first use of `tf.keras`. Later the variable has no effect,
    and one line reports the consequences.
    """
    if _VARIABLE in os.environ:
        return
    if _is_keras_3():
        warnings.warn(
            "tf.keras was used as Keras 3 before tfdist.estimator was imported: tf.keras, "
            "tf.compat.v1.layers and DenseFeatures may not build v1 graphs. Set "
            f"{_VARIABLE}=1, or import tfdist.estimator first.",
            stacklevel=3,
        )
        return
    os.environ[_VARIABLE] = "1"


def _is_keras_3() -> bool:
    """Returns whether `tf.keras` has been used already and is Keras 3."""
    tensorflow = sys.modules.get("tensorflow")
    # Before its first use it is a lazy loader without a version.
    shown = repr(getattr(tensorflow, "keras", None))
    return "keras_3" in shown or "keras._tf_keras" in shown
