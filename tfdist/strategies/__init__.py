"""How workers agree: the strategies, and where things are in a worker.

Importing this package imports TensorFlow; Horovod is imported when a `HorovodStrategy` is made.
"""

from tfdist.strategies.horovod import HorovodNotFoundError, HorovodStrategy
from tfdist.strategies.instance_calls import execute_on_instances, synchronize
from tfdist.strategies.local import LocalStrategy
from tfdist.strategies.multi_worker import MultiWorkerStrategy
from tfdist.strategies.placement import DeviceError, Placement
from tfdist.strategies.strategy_choice import join_run, strategy_for_run

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
