"""Distribution strategies, and the placement of variables and computations in a worker.

Importing this package imports TensorFlow. Horovod is imported when a `HorovodStrategy` is made.
"""

from tfdist.strategies.horovod.strategy import HorovodNotFoundError, HorovodStrategy
from tfdist.strategies.local import LocalStrategy
from tfdist.strategies.multi_worker import MultiWorkerStrategy
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


def __dir__() -> list[str]:
    return [*__all__]
