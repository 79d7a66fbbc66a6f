"""Scalars and arguments that all hooks of `ScalarsHook` take, and the packages that some need."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.monitoring import CsvMetricsHook, PrometheusHook

Train = Callable[..., Any]


def test_tensors_may_be_named_or_given(train: Train, tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    scalars: dict[str, Any] = {"own": "half", "named": "twice:0", "given": None}

    class Give(v1.train.SessionRunHook):  # type: ignore[misc]
        def begin(self) -> None:
            loss = v1.get_collection(v1.GraphKeys.LOSSES)[0]
            tf.multiply(loss, 2.0, name="twice")
            hook._chosen["given"] = loss + 1.0

    hook = CsvMetricsHook(path, scalars, every_n_steps=6)
    train([Give(), hook])
    assert path.read_text().splitlines() == ["step,own,named,given", "6,30.0,120.0,61.0"]


@pytest.mark.parametrize(
    ("scalars", "words"),
    [
        (["accuracy"], "nor a tensor called 'accuracy'. Its scalar summaries: half, l"),
        ("pair", "pair:0 has shape (2,); a scalar is needed"),
        ({"mine": 5}, "must be a tensor or the name of one, got 5."),
    ],
)
def test_what_is_no_scalar_of_the_graph_is_refused(
    train: Train, tmp_path: Path, scalars: Any, words: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        train([CsvMetricsHook(tmp_path / "metrics.csv", scalars)])


@pytest.mark.parametrize("every_n_steps", [0, 1.5, True])
def test_a_wrong_interval_is_refused(every_n_steps: Any) -> None:
    with pytest.raises(ValueError, match="every_n_steps must be an integer of at least 1"):
        CsvMetricsHook("x.csv", every_n_steps=every_n_steps)


def test_no_scalars_are_refused() -> None:
    with pytest.raises(ValueError, match="No scalars are chosen"):
        CsvMetricsHook("x.csv", [])


def test_a_missing_package_is_named_when_the_hook_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    words = "Hook needs prometheus_client, which is not installed. Run: pip install 'prometheus"
    with pytest.raises(ImportError, match=words):
        PrometheusHook(0)
