"""Session hooks that report on a training: CSV, a progress bar, Prometheus, and throughput."""

from tfdist.monitoring.csv_metrics import CsvMetricsHook
from tfdist.monitoring.progress_bar import ProgressBarHook
from tfdist.monitoring.prometheus import PrometheusHook
from tfdist.monitoring.throughput import ThroughputHook

__all__ = ["CsvMetricsHook", "ProgressBarHook", "PrometheusHook", "ThroughputHook"]


def __dir__() -> list[str]:
    return [*__all__]
