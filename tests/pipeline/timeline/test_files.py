"""The Chrome trace of a timeline: what chrome://tracing and Perfetto ask of a file."""

import json
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from tfdist.pipeline.schedule import Box
from tfdist.pipeline.timeline.files import trace_of
from tfdist.pipeline.timeline.step_times import TimedBox, Timeline

Simulate = Callable[..., Timeline]


@pytest.fixture
def timeline(simulate: Simulate) -> Timeline:
    return simulate("grouped", 4, [0.001] * 3, [0.002] * 3, replicas=2, devices=[0, 1, 0])


def events(timeline: Timeline, kind: str) -> list[dict[str, Any]]:
    trace = json.loads(json.dumps(trace_of(timeline)))
    return [event for event in trace["traceEvents"] if event["ph"] == kind]


def test_every_box_is_a_complete_event_in_microseconds(timeline: Timeline) -> None:
    boxes = events(timeline, "X")
    assert len(boxes) == 2 * 3 * 4 * 2
    assert min(event["ts"] for event in boxes) == 0
    assert max(event["ts"] + event["dur"] for event in boxes) == pytest.approx(
        1e6 * timeline.duration_s
    )
    forward = next(event for event in boxes if event["name"] == "forward 2")
    assert forward["dur"] == pytest.approx(1000)
    assert forward["args"] == {
        "stage": 0,
        "blocks": "B1",
        "micro_batch": 2,
        "replica": 0,
        "direction": "forward",
    }


def test_times_count_from_the_start_of_the_step() -> None:
    late = TimedBox(box=Box(0, 0, False), device="GPU:0", replica=0, start_s=5e9, end_s=5e9 + 1)
    (event,) = events(Timeline([late], ["B1"]), "X")
    assert (event["ts"], event["dur"]) == (0, 1e6)


def test_a_device_is_a_process_and_each_of_its_stages_a_thread(timeline: Timeline) -> None:
    named = events(timeline, "M")
    processes = {
        event["pid"]: event["args"]["name"] for event in named if event["name"] == "process_name"
    }
    threads = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in named
        if event["name"] == "thread_name"
    }
    assert list(processes.values()) == ["GPU:0", "GPU:1", "GPU:2", "GPU:3"]
    assert threads[0, 1] == "replica 0, stage 2 (B3)"
    assert {(event["pid"], event["tid"]) for event in events(timeline, "X")} == set(threads)


def test_events_of_a_thread_do_not_overlap(timeline: Timeline) -> None:
    threads = defaultdict(list)
    for event in events(timeline, "X"):
        threads[event["pid"], event["tid"]].append(event)
    for boxes in threads.values():
        for one, other in pairwise(boxes):
            assert one["ts"] + one["dur"] <= other["ts"] + 1e-6
