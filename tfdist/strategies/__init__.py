"""Distribution strategies, and the placement of variables and computations in a worker.

Importing this package imports TensorFlow. Horovod is imported when a `HorovodStrategy` is made.
"""

from tfdist.strategies.extended import WorkerExtended
from tfdist.strategies.grpc.strategy import MultiWorkerStrategy
from tfdist.strategies.horovod.strategy import HorovodNotFoundError, HorovodStrategy
from tfdist.strategies.keras.models import adapt_keras
from tfdist.strategies.local import LocalStrategy
from tfdist.strategies.placement import DeviceError, Placement
from tfdist.strategies.this_run import execute_on_instances, join_run, strategy_for_run, synchronize

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

WorkerExtended.when_entered = staticmethod(adapt_keras)


def __dir__() -> list[str]:
    return [*__all__]
