"""TensorFlow as the original's programs use it: the v1 names, `tf.estimator`, Keras 2.

With `norms.experimental.distributed_batch_norm_replica_group_size` above 1 in this process's
`IPUConfig`, the batch norms of `layers` and `keras.layers` come from `tfdist.training`, over groups
of that size.

TF_CONFIG is checked before TensorFlow is imported, which takes seconds.
"""

from __future__ import annotations

from functools import cache, partial
from types import ModuleType
from typing import Any

from tfdist.cluster import find_cluster

find_cluster()

import tensorflow as _tensorflow  # noqa: E402

from tfdist import estimator, training  # noqa: E402
from tfdist.ipu import mnist_sample as _mnist_sample  # noqa: E402
from tfdist.ipu.config import configured as _configured  # noqa: E402

__all__ = ["estimator", "keras", "layers"]


class _Overlay(ModuleType):
    """A module with a few names replaced."""

    def __init__(self, under: Any, **over: Any) -> None:
        super().__init__(under.__name__)
        self._under = under
        self.__dict__.update(over)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._under, name)


class _LayersOverlay(_Overlay):
    """A module of layers with the batch norm of the process's options when it is read."""

    def __init__(self, under: Any, name: str, over_groups: Any) -> None:
        super().__init__(under)
        self._name, self._over_groups = name, over_groups

    def __getattr__(self, name: str) -> Any:
        size = _configured().norms.experimental.distributed_batch_norm_replica_group_size
        if name == self._name and size > 1:
            return self._over_groups(size)
        return super().__getattr__(name)


@cache
def _batch_normalization_over(size: int) -> Any:
    """Returns tfdist's layer with tf_keras' arguments; one class for each group size."""

    class BatchNormalization(training.BatchNormalization):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            kwargs.update(zip(_BATCH_NORM_ARGUMENTS, args, strict=False))
            super().__init__(**{"group_size": size, **kwargs})

    return BatchNormalization


# The first arguments of tf_keras' BatchNormalization, which may be given by position.
_BATCH_NORM_ARGUMENTS = ("axis", "momentum", "epsilon", "center", "scale")

layers = _LayersOverlay(
    _tensorflow.compat.v1.layers,
    "batch_normalization",
    lambda size: partial(training.batch_normalization, group_size=size),
)
keras = _Overlay(
    _tensorflow.keras,
    layers=_LayersOverlay(
        _tensorflow.keras.layers, "BatchNormalization", _batch_normalization_over
    ),
    datasets=_Overlay(
        _tensorflow.keras.datasets,
        mnist=_Overlay(_tensorflow.keras.datasets.mnist, load_data=_mnist_sample.load_data),
    ),
)


def __getattr__(name: str) -> Any:
    """Returns a name of TensorFlow's v1 API, else of its current one."""
    v1 = _tensorflow.compat.v1
    return getattr(v1, name) if hasattr(v1, name) else getattr(_tensorflow, name)
