"""Session hooks that report on a training: CSV, memory, progress, Prometheus, profiles, W&B."""

from tfdist.estimator.loop.step_profile_hook import StepProfileHook
from tfdist.monitoring.csv_metrics import CsvMetricsHook
from tfdist.monitoring.memory import MemoryHook
from tfdist.monitoring.progress_bar import ProgressBarHook
from tfdist.monitoring.prometheus import PrometheusHook
from tfdist.monitoring.throughput import ThroughputHook
from tfdist.monitoring.wandb import WandbHook

__all__ = [
    "CsvMetricsHook",
    "MemoryHook",
    "ProgressBarHook",
    "PrometheusHook",
    "StepProfileHook",
    "ThroughputHook",
    "WandbHook",
]


def __dir__() -> list[str]:
    return [*__all__]
