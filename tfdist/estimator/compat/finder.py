"""The finder of `tensorflow_estimator.python.estimator...`, from which libraries import.

    from tensorflow_estimator.python.estimator.canned import prediction_keys
    from tensorflow.python.estimator.canned import prediction_keys
                                              |
          a module of `_MODULES`: each name is looked up in ours when it is used

The modules are those of the estimators of libraries (TensorFlow Privacy, deepctr, EasyRec), and
those of names that programs import although tf.estimator did not export them
(docs/moving-from-tf-estimator.md). A name that is not here is an object that tells so at its use,
as in `tfdist.estimator.missing`: libraries import more than a program uses.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from tfdist.estimator.missing import missing

_ROOT = "python.estimator"
_PACKAGES = ("", "canned", "export", "head")
_HEADS, _CANNED = "tfdist.estimator.compat.base_head", "tfdist.estimator.compat.canned"
_EXPORT = "tfdist.estimator.export"
_TRAINING, _OLD_EXPORTS = "tfdist.estimator.compat.training", "tfdist.estimator.compat.old_exports"
# Where to look for the names of each module, before `tfdist.estimator.v1`.
_MODULES: dict[str, str] = {
    "canned.dnn": _CANNED,
    "canned.head": _CANNED,
    "canned.linear": _CANNED,
    "canned.metric_keys": _CANNED,
    "canned.optimizers": _CANNED,
    "canned.prediction_keys": _CANNED,
    "early_stopping": "tfdist.estimator.train.early_stopping",
    "estimator": _CANNED,
    "estimator_export": _OLD_EXPORTS,
    "export.export": _EXPORT,
    "export.export_output": _EXPORT,
    "exporter": "tfdist.estimator.evaluation.exporters",
    "gc": _OLD_EXPORTS,
    "head.base_head": _HEADS,
    "head.binary_class_head": _HEADS,
    "head.multi_class_head": _HEADS,
    "head.multi_label_head": _HEADS,
    "mode_keys": _CANNED,
    "model_fn": _CANNED,
    "run_config": "tfdist.estimator.config.run_config",
    "training": _TRAINING,
    "util": _OLD_EXPORTS,
}
# Modules that TensorFlow had elsewhere.
_ELSEWHERE = {"tensorflow.python.distribute.estimator_training": _TRAINING}


class EstimatorModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds and makes the modules below a package, as TensorFlow had them.

    Args:
      package: "tensorflow_estimator", or "tensorflow", whose own modules come first.
    """

    def __init__(self, package: str) -> None:
        self._python = f"{package}.python"
        self.root = f"{package}.{_ROOT}"

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Returns the spec of a module; raises ModuleNotFoundError for one that is not here."""
        if fullname in _ELSEWHERE and fullname.startswith(f"{self._python}."):
            return importlib.machinery.ModuleSpec(fullname, self)
        if fullname == self._python:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        if fullname != self.root and not fullname.startswith(f"{self.root}."):
            return None
        part = self._part(fullname)
        if part not in _PACKAGES and part not in _MODULES:
            raise ModuleNotFoundError(
                f"{fullname} is not in tfdist. Its names may be in tfdist.estimator, which has "
                "those of tf.estimator.",
                name=fullname,
            )
        return importlib.machinery.ModuleSpec(fullname, self, is_package=part in _PACKAGES)

    def exec_module(self, module: ModuleType) -> None:
        """Gives a module its names: those of our modules, or its submodules."""
        name = module.__name__
        if name == self._python:
            return
        part = "" if name in _ELSEWHERE else self._part(name)

        def find_submodule(attribute: str) -> Any:
            inner = f"{part}.{attribute}" if part else attribute
            if inner in _PACKAGES or inner in _MODULES:
                return importlib.import_module(f"{name}.{attribute}")
            raise AttributeError(f"module {name!r} has no attribute {attribute!r}")

        def find(attribute: str) -> Any:
            if attribute.startswith("__"):
                raise AttributeError(attribute)
            return _find(_ELSEWHERE.get(name) or _MODULES[part], name, attribute)

        is_package = part in _PACKAGES and name not in _ELSEWHERE
        module.__getattr__ = find_submodule if is_package else find  # type: ignore[method-assign]

    def _part(self, name: str) -> str:
        return name[len(self.root) :].removeprefix(".")


def _find(place: str, module: str, name: str) -> Any:
    """Returns the object of a name: of `place`, of v2 (`EstimatorV2`), of v1, or a missing one."""
    v2 = importlib.import_module("tfdist.estimator")
    v1 = importlib.import_module("tfdist.estimator.v1")
    first = importlib.import_module(place)
    if name in vars(first):
        return vars(first)[name]
    if name.endswith("V2") and name.removesuffix("V2") in v2.__all__:
        return getattr(v2, name.removesuffix("V2"))
    for ours in (v1, v2.export):
        if name in dir(ours):
            return getattr(ours, name)
    return missing(f"{module}.{name}")


def install(package: str) -> None:
    """Puts a finder behind Python's own; a second call changes nothing."""
    root = f"{package}.{_ROOT}"
    if not any(isinstance(f, EstimatorModules) and f.root == root for f in sys.meta_path):
        sys.meta_path.append(EstimatorModules(package))
