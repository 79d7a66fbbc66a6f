"""Watching a training: session hooks that tell others how it goes."""

from tfdist.monitoring.csv_metrics import CsvMetricsHook
from tfdist.monitoring.prometheus import PrometheusHook
from tfdist.monitoring.throughput import ThroughputHook

__all__ = ["CsvMetricsHook", "PrometheusHook", "ThroughputHook"]
