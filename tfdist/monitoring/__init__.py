"""Session hooks that report on a training: CSV, Prometheus, throughput, and profiles."""

from tfdist.estimator.training.step_profile.hook import StepProfileHook
from tfdist.monitoring.csv_metrics import CsvMetricsHook
from tfdist.monitoring.prometheus import PrometheusHook
from tfdist.monitoring.throughput import ThroughputHook

__all__ = ["CsvMetricsHook", "PrometheusHook", "StepProfileHook", "ThroughputHook"]


def __dir__() -> list[str]:
    return [*__all__]
