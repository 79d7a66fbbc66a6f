"""Which Keras `tf.keras` is: decided once, before anybody touches it."""

from __future__ import annotations

import os
import sys
import warnings

_VARIABLE = "TF_USE_LEGACY_KERAS"


def choose() -> None:
    """Makes `tf.keras` Keras 2 unless the user set TF_USE_LEGACY_KERAS or Keras 3 is loaded.

    TensorFlow reads the variable when `tf.keras` is first touched; after that it has no effect,
    and then one line says what follows.
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
    """Says whether `tf.keras` has been touched, and is Keras 3 since."""
    tensorflow = sys.modules.get("tensorflow")
    # Before the first touch it is a lazy loader that says nothing of a version.
    shown = repr(getattr(tensorflow, "keras", None))
    return "keras_3" in shown or "keras._tf_keras" in shown
