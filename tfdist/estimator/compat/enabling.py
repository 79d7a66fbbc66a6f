"""`enable_compat`: tfdist.estimator as tf.estimator, for programs with unchanged imports."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
from types import ModuleType
from typing import Any, Literal

import tensorflow as tf

from tfdist.cluster.environment import PARAMETER_SERVERS
from tfdist.estimator.compat import finder
from tfdist.estimator.config.run_config_rules import check_setting

# TensorFlow has several modules for its API. tf.compat.v1 is one module, and sys.modules has
# another one as tensorflow._api.v2.compat.v1. Each also contains the API of the other version.
_API = re.compile(r"tensorflow(\._api\.v2)?(\.compat\.v[12])*")
_PARTS = ("experimental", "export", "inputs", "tpu")
_KERAS = {
    "tf_keras.estimator": "v2",
    "tf_keras.api._v2.keras.estimator": "v2",
    "tf_keras.api._v1.keras.estimator": "v1",
}


def enable_compat(*, parameter_servers: Literal["replace"] | None = None) -> None:
    """Puts `tfdist.estimator` where TensorFlow had tf.estimator up to 2.15.

    Call it once, before the first import of a module that uses tf.estimator. Further calls have no
    effect. Afterwards these work as before, each with the classes of its version:

    * `tf.estimator`, `from tensorflow import estimator`, `import tensorflow.estimator`;
    * the same of `tensorflow.compat.v1` and `tensorflow.compat.v2`;
    * `tf.keras.estimator.model_to_estimator`, where `tf.keras` is Keras 2, and
      `tf.compat.v1.keras.estimator.model_to_estimator`;
    * `from tensorflow_estimator import estimator`, the v1 version, unless that is installed;
    * `tensorflow_estimator.python.estimator...` and `tensorflow.python.estimator...`, from which
      libraries import: modules, classes and keys of the same names, each from tfdist. The use of
      one that is missing says so.

    Args:
      parameter_servers: "replace" sets the environment variable TFDIST_PARAMETER_SERVERS: every
        `RunConfig` of this process then has `parameter_servers="replace"`.

    Raises:
      ValueError: If `parameter_servers` is something else.
      RuntimeError: If this TensorFlow includes tf.estimator.
    """
    if parameter_servers is not None:
        check_setting("parameter_servers", parameter_servers)
        os.environ[PARAMETER_SERVERS] = parameter_servers
    from tfdist import estimator as v2
    from tfdist.estimator import v1

    reason = reason_to_refuse(tf.__version__, tf.__dict__.get("estimator"), v2)
    if reason:
        raise RuntimeError(reason)
    importlib.import_module("tensorflow.compat.v1")
    importlib.import_module("tensorflow.compat.v2")
    for name, module in list(sys.modules.items()):
        if _API.fullmatch(name):
            estimator: Any = v1 if name.endswith("v1") else v2
            module.estimator = estimator  # type: ignore[attr-defined]
            _make_importable(f"{name}.estimator", estimator)
    for name, version in _KERAS.items():
        keras: Any = importlib.import_module(name)
        keras.model_to_estimator = (v1 if version == "v1" else v2).model_to_estimator
    finder.install("tensorflow")
    if "tensorflow_estimator" in sys.modules or not importlib.util.find_spec(
        "tensorflow_estimator"
    ):
        _stand_in_for_tensorflow_estimator(v1)


def reason_to_refuse(version: str, existing: Any, ours: Any) -> str | None:
    """Returns the reason why tf.estimator cannot be replaced, or None."""
    major, minor = (int(part) for part in version.split(".")[:2])
    if (major, minor) >= (2, 16) and (existing is None or existing is ours):
        return None
    return (
        f"TensorFlow {version} has a tf.estimator of its own, which enable_compat() does not "
        "replace. Use TensorFlow 2.16 or newer, or import tfdist.estimator under that name."
    )


def _make_importable(name: str, estimator: Any) -> None:
    """Makes `import <name>` and `import <name>.export` find the existing modules."""
    sys.modules[name] = estimator
    for part in _PARTS:
        if part in dir(estimator):
            sys.modules[f"{name}.{part}"] = getattr(estimator, part)


def _stand_in_for_tensorflow_estimator(v1: Any) -> None:
    package = sys.modules.setdefault("tensorflow_estimator", ModuleType("tensorflow_estimator"))
    package.estimator = v1  # type: ignore[attr-defined]
    package.__path__ = []  # It is a package: the finder has its other modules.
    _make_importable("tensorflow_estimator.estimator", v1)
    finder.install("tensorflow_estimator")
