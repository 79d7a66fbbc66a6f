"""Session hooks that report on a training: CSV, Prometheus, and throughput."""

from tfdist.monitoring.csv_metrics import CsvMetricsHook
from tfdist.monitoring.prometheus import PrometheusHook
from tfdist.monitoring.throughput import ThroughputHook

__all__ = ["CsvMetricsHook", "PrometheusHook", "ThroughputHook"]


def __dir__() -> list[str]:
    return [*__all__]
