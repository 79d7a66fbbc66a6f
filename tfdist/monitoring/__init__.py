"""Session hooks that report on a training: CSV, memory, Prometheus, throughput, profiles.

Importing this package leaves the choice of `tf.keras` to the program. StepProfileHook, which is for
sessions alone, is imported when it is used: with it comes the Estimator, which chooses Keras 2.
"""

from typing import TYPE_CHECKING, Any

from tfdist.monitoring.csv_metrics import CsvMetricsHook
from tfdist.monitoring.memory import MemoryHook
from tfdist.monitoring.prometheus import PrometheusHook
from tfdist.monitoring.scalars import ScalarsHook
from tfdist.monitoring.throughput import ThroughputHook

if TYPE_CHECKING:
    from tfdist.estimator.loop.step_profile_hook import StepProfileHook

__all__ = [
    "CsvMetricsHook",
    "MemoryHook",
    "PrometheusHook",
    "ScalarsHook",
    "StepProfileHook",
    "ThroughputHook",
]


def __getattr__(name: str) -> Any:
    if name != "StepProfileHook":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tfdist.estimator.loop.step_profile_hook import StepProfileHook

    return StepProfileHook


def __dir__() -> list[str]:
    return [*__all__]
