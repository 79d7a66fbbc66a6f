"""TensorFlow as the original's programs use it: the v1 names, `tf.estimator`, Keras 2.

TF_CONFIG is checked before TensorFlow is imported, which takes seconds.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from tfdist.cluster import find_cluster

find_cluster()

import tensorflow as _tensorflow  # noqa: E402

from tfdist import estimator  # noqa: E402
from tfdist.ipu import mnist_sample as _mnist_sample  # noqa: E402

__all__ = ["estimator", "keras"]


class _Overlay(ModuleType):
    """A module with a few names replaced."""

    def __init__(self, under: Any, **over: Any) -> None:
        super().__init__(under.__name__)
        self._under = under
        self.__dict__.update(over)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._under, name)


keras = _Overlay(
    _tensorflow.keras,
    datasets=_Overlay(
        _tensorflow.keras.datasets,
        mnist=_Overlay(_tensorflow.keras.datasets.mnist, load_data=_mnist_sample.load_data),
    ),
)


def __getattr__(name: str) -> Any:
    """Returns a name of TensorFlow's v1 API, else of its current one."""
    v1 = _tensorflow.compat.v1
    return getattr(v1, name) if hasattr(v1, name) else getattr(_tensorflow, name)
