"""PrometheusHook: scalars over HTTP while training runs."""

import urllib.request
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import tensorflow.compat.v1 as v1

from tfdist.monitoring import PrometheusHook, prometheus
from tfdist.monitoring.prometheus import metric_name

Train = Callable[..., Any]


class Collect(v1.train.SessionRunHook):  # type: ignore[misc]
    """Asks a hook's server after each step, as Prometheus would."""

    def __init__(self, hook: PrometheusHook) -> None:
        self.hook = hook
        self.seen: list[dict[str, float]] = []

    def after_run(self, run_context: Any, run_values: Any) -> None:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.hook.port}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        pairs = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
        self.seen.append({name: float(value) for name, value in pairs})


def test_the_newest_values_are_served(train: Train, logged: list[str]) -> None:
    hook = PrometheusHook(0, ["loss", "half"], every_n_steps=2, address="127.0.0.1")
    collect = Collect(hook)
    train([hook, collect], steps=4)
    worker = '{worker="0"}'
    loss = [seen[f"tfdist_loss{worker}"] for seen in collect.seen]
    assert loss == [0, 20, 20, 40]
    assert collect.seen[-1][f"tfdist_half{worker}"] == 20
    assert [seen[f"tfdist_global_step{worker}"] for seen in collect.seen] == [0, 2, 2, 4]
    assert collect.seen[-1][f"tfdist_steps_per_second{worker}"] > 0
    assert any(line.startswith("Metrics for Prometheus: http://127.0.0.1:") for line in logged)


def test_a_hook_serves_one_training_after_the_other_and_then_no_more(train: Train) -> None:
    hook = PrometheusHook(0, every_n_steps=1, address="127.0.0.1")
    for last in (20, 40):
        collect = Collect(hook)
        train([hook, collect], steps=2)
        assert collect.seen[-1]['tfdist_loss{worker="0"}'] == last
    assert hook.port is None


def test_what_interruptions_of_the_run_have_cost_is_served(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = PrometheusHook(0, every_n_steps=1)
    monkeypatch.setattr(prometheus, "_begin", None)

    def served() -> dict[str, float]:
        collect = Collect(hook)
        train([hook, collect], steps=1)
        seen = collect.seen[-1]
        names = ("workers", "restarts", "steps_repeated", "seconds_lost")
        return {name: seen[f'tfdist_{name}{{worker="0"}}'] for name in names}

    assert served() == {"workers": 1, "restarts": 0, "steps_repeated": 0, "seconds_lost": 0}
    for name, value in {"COUNT": 2, "STEP": 12, "REPEATED_STEPS": 30, "LOST_S": 5000}.items():
        monkeypatch.setenv(f"TFDIST_RESTART_{name}", str(value))
    first = served()
    assert (first["restarts"], first["steps_repeated"]) == (2, 41)  # It begins at step 1 of 12.
    assert first["seconds_lost"] > 5000
    assert served() == first  # A second training of the process repeats nothing.


def test_a_training_that_failed_does_not_keep_the_port(train: Train) -> None:
    class Fail(v1.train.SessionRunHook):  # type: ignore[misc]
        def after_run(self, run_context: Any, run_values: Any) -> None:
            raise KeyError("mine")

    hook = PrometheusHook(0, every_n_steps=1, address="127.0.0.1")
    with pytest.raises(KeyError, match="mine"):
        train([hook, Fail()])
    collect = Collect(hook)
    train([hook, collect], steps=1)
    assert len(collect.seen) == 1


def test_the_port_of_the_last_worker_is_a_port(
    as_second_worker: AbstractContextManager[None],
) -> None:
    PrometheusHook(65_535)
    with as_second_worker, pytest.raises(ValueError, match="at most 65534, got 65535"):
        PrometheusHook(65_535)


def test_names_become_prometheus_names() -> None:
    assert metric_name("rmse/per cent:0") == "tfdist_rmse_per_cent_0"
    with pytest.raises(ValueError, match="Two scalars get the same name"):
        PrometheusHook(0, ["a/b", "a_b"])
