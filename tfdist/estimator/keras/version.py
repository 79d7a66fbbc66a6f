"""The choice of the Keras version of `tf.keras`, made once, before its first use.

TensorFlow reads TF_USE_LEGACY_KERAS twice:

    import tensorflow               where `from tensorflow.keras import layers` looks for modules
    tf.keras, for the first time    which Keras the attribute is

So the variable is set before TensorFlow is imported. Where TensorFlow came first, its modules are
told where to look.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import warnings

_VARIABLE = "TF_USE_LEGACY_KERAS"
_YES = ("true", "True", "1")  # As TensorFlow reads it.
# The modules of TensorFlow's API that have a `keras`; programs import some under two names.
_API = re.compile(r"tensorflow(\._api\.v2)?(\.compat\.v[12])*")
_ATTRIBUTES = ("keras", "initializers", "losses", "metrics", "optimizers")


def choose() -> None:
    """Makes `tf.keras` Keras 2 unless the user set TF_USE_LEGACY_KERAS or it is Keras 3 already.

    In the last case the variable is left alone, and one line reports the consequences. `import
    keras` is Keras 3 either way.
    """
    if os.environ.get(_VARIABLE, "1") not in _YES:
        return
    if _is_keras_3():
        warnings.warn(
            "tf.keras was used as Keras 3 before tfdist.estimator was imported: tf.keras, "
            "tf.compat.v1.layers and DenseFeatures may not build v1 graphs. Set "
            f"{_VARIABLE}=1, or import tfdist.estimator first.",
            stacklevel=3,
        )
        return
    os.environ.setdefault(_VARIABLE, "1")
    _find_keras_2_by_path()


def _is_keras_3() -> bool:
    """Returns whether `tf.keras`, or an alias of its parts, has been used and is Keras 3."""
    tensorflow = sys.modules.get("tensorflow")
    # Before its first use it is a lazy loader without a version; afterwards it may be a module, by
    # one of two names.
    shown = [repr(vars(tensorflow).get(name)) for name in _ATTRIBUTES] if tensorflow else []
    return any("keras_3" in part or "_tf_keras" in part for part in shown)


def _find_keras_2_by_path() -> None:
    """Makes the modules of TensorFlow's API that are there look for `keras` in tf_keras."""
    newer, older = (_folder_of_api(name) for name in ("keras", "tf_keras"))
    for name, module in list(sys.modules.items()):
        if newer and older and _API.fullmatch(name) and hasattr(module, "__path__"):
            module.__path__ = [
                older + path.removeprefix(newer) if str(path).startswith(newer) else path
                for path in module.__path__
            ]


def _folder_of_api(package: str) -> str | None:
    spec = importlib.util.find_spec(package)
    return None if spec is None or not spec.origin else f"{os.path.dirname(spec.origin)}/api/"
