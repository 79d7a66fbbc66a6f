"""Scalars for Prometheus. Needs prometheus_client, which is imported when the hook is made."""

from __future__ import annotations

import os
import re
import time
from typing import Any

import psutil
import tensorflow.compat.v1 as v1

from tfdist.cluster.instance_variables import (
    read_restart_cost,
    read_restart_count,
    read_restart_step,
)
from tfdist.cluster.instances import find_instance
from tfdist.cluster.tasks import checked_count
from tfdist.monitoring.scalars import Chosen, ScalarsHook, load_package, own_worker_index

_LAST_PORT = 65_535


class PrometheusHook(ScalarsHook):
    """Serves scalars, the global step and its speed over HTTP while training runs.

    The gauges are labelled with the worker's index: `tfdist_global_step`,
    `tfdist_steps_per_second`, `tfdist_workers` (as many as train now) and `tfdist_<name>` for each
    scalar. Of the launcher's interruptions there are `tfdist_restarts`, `tfdist_steps_repeated` and
    `tfdist_seconds_lost`, from each interruption until training began again; all are 0 without one.
    Every worker that has the hook serves its own values.

    Args:
      port: The port of worker 0; worker i listens at port + i, so that workers may share a
        machine. 0 takes any free port, which is logged.
      scalars: As for `ScalarsHook`.
      every_n_steps: Steps between two updates.
      address: The interface to listen at. The default is this machine only; "0.0.0.0" is all of
        its networks, and serves the values to all of them.

    Attributes:
      port: The port at which it listens while training runs; else None.

    Raises:
      ImportError: If prometheus_client is not installed.
      ValueError: As in `ScalarsHook`; if two scalars get the same name.
      OSError: When training starts, if the port is in use.
    """

    def __init__(
        self,
        port: int,
        scalars: Chosen = ("loss",),
        every_n_steps: int = 10,
        address: str = "127.0.0.1",
    ) -> None:
        super().__init__(scalars, every_n_steps)
        most = _LAST_PORT + 1 - find_instance().num_instances
        if checked_count("port", port, least=0) > most:
            raise ValueError(f"port must be at most {most}, got {port}: worker i takes port + i.")
        if not isinstance(address, str):
            raise ValueError(f'address must be a text such as "127.0.0.1", got {address!r}.')
        self._client = load_package(
            "PrometheusHook", "prometheus_client", "prometheus_client>=0.20"
        )
        worker = own_worker_index()
        self._requested_port = port + worker if port else 0
        self._address = address
        self.port: int | None = None
        self._server: Any = None
        self._registry = self._client.CollectorRegistry()
        own = {
            "global_step": "Global step",
            "steps_per_second": "Steps per second",
            "workers": "Workers that train now",
            "restarts": "Restarts of the workers by the launcher",
            "steps_repeated": "Steps made again after interruptions",
            "seconds_lost": "Seconds from interruptions until training began again",
        }
        described = {**own, **{name: f"{name}, of the newest update" for name in self.names}}
        metrics = {name: metric_name(name) for name in described}
        if len(set(metrics.values())) != len(metrics) or set(own) & set(self.names):
            raise ValueError(f"Two scalars get the same name in Prometheus: {metrics}. Rename one.")
        self._gauges = {
            name: self._client.Gauge(
                metrics[name], text, ["worker"], registry=self._registry
            ).labels(worker)
            for name, text in described.items()
        }
        self._last: tuple[int, float] | None = None

    def start(self, step: int) -> None:
        self._stop()  # The server of a training that failed.
        self._server, self._thread = self._client.start_http_server(
            self._requested_port, addr=self._address, registry=self._registry
        )
        self.port = self._server.server_port
        v1.logging.info("Metrics for Prometheus: http://%s:%d/metrics", self._address, self.port)
        self._gauges["global_step"].set(step)
        self._gauges["workers"].set(find_instance().num_instances)
        self._gauges["restarts"].set(read_restart_count(os.environ))
        lost_s, repeated = _cost_of_interruptions(step)
        self._gauges["seconds_lost"].set(lost_s)
        self._gauges["steps_repeated"].set(repeated)
        self._last = (step, time.monotonic())

    def report(self, step: int, scalars: dict[str, float]) -> None:
        now_s = time.monotonic()
        if self._last is not None and now_s > self._last[1]:
            speed = (step - self._last[0]) / (now_s - self._last[1])
            self._gauges["steps_per_second"].set(speed)
        self._last = (step, now_s)
        for name, value in {**scalars, "global_step": step}.items():
            self._gauges[name].set(value)

    def end(self, session: Any) -> None:
        self._stop()

    def _stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()
            self._server = self.port = None


def _cost_of_interruptions(step: int) -> tuple[float, int]:
    """Returns the seconds lost and the steps made again by the run's interruptions so far.

    The launcher knows them up to the start of this process. `step` is the one from which it trains.
    """
    global _begin
    if read_restart_count(os.environ) == 0:
        return 0.0, 0
    if _begin is None:
        _begin = (step, time.time() - psutil.Process().create_time())
    lost_s, repeated = read_restart_cost(os.environ)
    first_step, start_s = _begin
    return lost_s + start_s, repeated + max(0, read_restart_step(os.environ) - first_step)


# Of the first training in this process: its step, and the seconds since the process began.
_begin: tuple[int, float] | None = None


def metric_name(name: str) -> str:
    """Returns a name that Prometheus allows: letters, digits and underscores."""
    return "tfdist_" + re.sub(r"[^a-zA-Z0-9_]", "_", name)
