"""Session hooks that report on a training: CSV, progress, Prometheus, throughput, profiles."""

from tfdist.estimator.training.step_profile.hook import StepProfileHook
from tfdist.monitoring.csv_metrics import CsvMetricsHook
from tfdist.monitoring.progress_bar import ProgressBarHook
from tfdist.monitoring.prometheus import PrometheusHook
from tfdist.monitoring.throughput import ThroughputHook

__all__ = [
    "CsvMetricsHook",
    "ProgressBarHook",
    "PrometheusHook",
    "StepProfileHook",
    "ThroughputHook",
]


def __dir__() -> list[str]:
    return [*__all__]
