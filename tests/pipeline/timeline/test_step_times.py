"""The numbers of a timeline, from boxes whose times are made up."""

from collections.abc import Callable

import pytest

from tfdist.pipeline.schedule import SCHEDULES, Box, Schedule, busy_share_bound
from tfdist.pipeline.timeline.step_times import TimedBox, Timeline

Simulate = Callable[..., Timeline]


def timed(label: str, stage: int, start_s: float, end_s: float, device: str = "") -> TimedBox:
    return TimedBox(
        box=Box(stage, int(label[1:]), label[0] == "B"),
        device=device or f"GPU:{stage}",
        replica=0,
        start_s=start_s,
        end_s=end_s,
    )


TWO_STAGES = [
    timed("F0", 0, 10, 11),
    timed("F0", 1, 12, 15),
    timed("B0", 1, 15, 19),
    timed("B0", 0, 19, 20),
]


def test_the_step_lasts_from_the_first_start_to_the_last_end() -> None:
    assert Timeline(TWO_STAGES, ["B1", "B2"]).duration_s == 10


def test_a_stage_has_the_mean_times_of_its_forward_and_backward() -> None:
    boxes = [timed("F0", 0, 0, 1), timed("F1", 0, 1, 4), timed("B0", 0, 5, 6), timed("B1", 0, 6, 8)]
    (stage,) = Timeline(boxes, ["B1"]).stages
    assert (stage.forward_s, stage.backward_s, stage.micro_batch_s) == (2, 1.5, 3.5)
    assert stage.busy_share == pytest.approx(7 / 8)


def test_a_device_is_idle_before_between_and_after_its_boxes() -> None:
    first, second = Timeline(TWO_STAGES, ["B1", "B2"]).devices
    assert (first.name, first.busy_share, first.idle) == ("GPU:0", 0.2, ((11, 19),))
    assert (second.busy_share, second.idle) == (0.7, ((10, 12), (19, 20)))


def test_the_slowest_stage_is_compared_with_the_mean_of_all() -> None:
    timeline = Timeline(TWO_STAGES, ["B1", "B2"])
    assert timeline.slowest_stage.name == "B2"
    assert timeline.imbalance == pytest.approx(7 / 4.5)
    assert timeline.over_mean(timeline.stages[0]) == pytest.approx(2 / 4.5)


def test_boxes_that_overlap_on_a_shared_device_count_once() -> None:
    boxes = [timed("F0", 0, 0, 6, "GPU:0"), timed("F0", 1, 4, 8, "GPU:0"), timed("F1", 0, 9, 10)]
    (device,) = Timeline(boxes, ["B1", "B2"]).devices
    assert (device.lanes, device.busy_share, device.idle) == (((0, 0), (0, 1)), 0.9, ((8, 9),))


@pytest.mark.parametrize(
    ("schedule", "kept"),
    [("grouped", [7, 5, 3, 1]), ("interleaved", [4, 3, 2, 1]), ("sequential", [1, 1, 1, 1])],
)
def test_the_activations_of_the_times_are_those_of_the_schedule(
    simulate: Simulate, schedule: Schedule, kept: list[int]
) -> None:
    timeline = simulate(schedule, 10, [1.0] * 4, [2.0] * 4)
    assert [stage.peak_activations for stage in timeline.stages] == kept


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("backward_s", [1.0, 2.0, 3.5])
def test_even_stages_are_as_busy_as_the_bound_however_long_a_backward_takes(
    simulate: Simulate, schedule: Schedule, backward_s: float
) -> None:
    timeline = simulate(schedule, 10, [1.0] * 4, [backward_s] * 4)
    assert timeline.busy_share == pytest.approx(busy_share_bound(schedule, 4, 10))


def test_inference_keeps_no_activations_and_has_no_backward(simulate: Simulate) -> None:
    timeline = simulate("grouped", 6, [1.0, 1.0])
    assert [(stage.peak_activations, stage.backward_s) for stage in timeline.stages] == [(0, 0)] * 2


def test_replicas_share_a_stage_and_each_has_its_own_activations(simulate: Simulate) -> None:
    timeline = simulate("interleaved", 8, [1.0, 1.0], [2.0, 2.0], replicas=2)
    assert [stage.devices for stage in timeline.stages] == [("GPU:0", "GPU:2"), ("GPU:1", "GPU:3")]
    assert [device.name for device in timeline.devices] == ["GPU:0", "GPU:1", "GPU:2", "GPU:3"]
    assert [stage.peak_activations for stage in timeline.stages] == [2, 1]
    assert timeline.stages[0].busy_share == pytest.approx(timeline.devices[0].busy_share)


def test_boxes_without_a_duration_do_not_divide_by_nothing() -> None:
    timeline = Timeline([timed("F0", 0, 5, 5)], ["B1"])
    assert (timeline.duration_s, timeline.busy_share, timeline.imbalance) == (0, 1, 1)
