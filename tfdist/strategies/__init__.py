"""Distribution strategies, and the placement of variables and computations in a worker.

Importing this package imports TensorFlow. Horovod is imported when a `HorovodStrategy` is made.
"""

import tensorflow as tf

from tfdist.process import tried_versions

_VERSIONS = tried_versions.versions_with(tf.__version__)
tried_versions.report_newer(_VERSIONS)

with tried_versions.missing_names_explained(_VERSIONS):
    from tfdist.strategies.extended import WorkerExtended
    from tfdist.strategies.grpc.strategy import MultiWorkerStrategy
    from tfdist.strategies.horovod.strategy import HorovodNotFoundError, HorovodStrategy
    from tfdist.strategies.keras.models import adapt_keras
    from tfdist.strategies.local import LocalStrategy
    from tfdist.strategies.placement import DeviceError, Placement
    from tfdist.strategies.this_run import (
        execute_on_instances,
        join_run,
        strategy_for_run,
        synchronize,
    )

__all__ = [
    "DeviceError",
    "HorovodNotFoundError",
    "HorovodStrategy",
    "LocalStrategy",
    "MultiWorkerStrategy",
    "Placement",
    "execute_on_instances",
    "join_run",
    "strategy_for_run",
    "synchronize",
]


def _adapt_keras() -> None:
    with tried_versions.missing_names_explained(_VERSIONS):
        adapt_keras()


WorkerExtended.when_entered = staticmethod(_adapt_keras)


def __dir__() -> list[str]:
    return [*__all__]
