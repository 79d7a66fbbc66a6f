"""Profiles of a call: TensorBoard's, a Chrome trace, and timelines."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tfdist.pipeline import Options, PipelinedExecution, inference_model, training_model

Quiet = Callable[..., Options]


def boxes_in_trace(folder: Path) -> list[str]:
    trace = json.loads((folder / "trace.json").read_text())
    events = trace["traceEvents"] if isinstance(trace, dict) else trace
    return [event["name"] for event in events if event.get("ph") == "X"]


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_training_call_writes_its_profile(
    layered: Any, quiet: Quiet, samples: Any, tmp_path: Path, replicas: int
) -> None:
    options = quiet(
        PipelinedExecution("B1", "B2"),
        gradient_accumulation=3,
        device_iterations=2,
        replication_factor=replicas,
        enable_profiling=tmp_path / "profile",
    )
    training_model(layered(2), options)(*samples(12 * replicas))
    folder = tmp_path / "profile"
    assert list(folder.glob("plugins/profile/*/*.xplane.pb"))
    assert (folder / "timeline.png").read_bytes().startswith(b"\x89PNG")
    text = (folder / "timeline.txt").read_text()
    for device in range(1, 2 * replicas + 1):
        assert f"CPU:{device}" in text
    # One step: a forward and a backward of 3 micro-batches in 2 stages of each replica.
    assert len(boxes_in_trace(folder)) >= 12 * replicas


def test_an_inference_call_writes_its_profile(
    layered: Any, quiet: Quiet, samples: Any, tmp_path: Path
) -> None:
    options = quiet(PipelinedExecution("B1", "B2"), device_iterations=4, enable_profiling=tmp_path)
    inputs, _ = samples(8)
    inference_model(layered(2), options)(inputs)
    assert list(tmp_path.glob("plugins/profile/*/*.xplane.pb"))
    assert {"timeline.txt", "timeline.png", "trace.json"} <= {p.name for p in tmp_path.iterdir()}
    assert len(boxes_in_trace(tmp_path)) >= 8


def test_without_profiling_no_clock_is_read(layered: Any, quiet: Quiet, samples: Any) -> None:
    train = training_model(
        layered(2), quiet(PipelinedExecution("B1", "B2"), gradient_accumulation=3)
    )
    train(*samples(6))
    (program,) = train._calls._programs.values()
    assert "Timestamp" not in {op.type for op in program._call.graph.get_operations()}


def test_profiled_calls_give_the_same_outputs(
    layered: Any, quiet: Quiet, samples: Any, tmp_path: Path
) -> None:
    inputs, labels = samples(6)
    options = quiet(PipelinedExecution("B1", "B2"), gradient_accumulation=3)
    plain = [float(v) for v in [training_model(layered(2), options)(inputs, labels)[1]]]
    options = options.clone().enable_profiling(tmp_path)
    assert plain == [float(training_model(layered(2), options)(inputs, labels)[1])]
