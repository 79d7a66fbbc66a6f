"""Timelines made from a schedule and a duration for each stage: no clock, no devices."""

from collections.abc import Callable, Sequence

import pytest

from tfdist.pipeline.schedule import (
    Box,
    Schedule,
    inference_ticks,
    order_on_devices,
    training_ticks,
)
from tfdist.pipeline.timeline import TimedBox, Timeline


@pytest.fixture
def simulate() -> Callable[..., Timeline]:
    """Runs a schedule: every device keeps to its order and starts a box as soon as it can."""

    def simulate(
        schedule: Schedule,
        num_micro_batches: int,
        forward_s: Sequence[float],
        backward_s: Sequence[float] = (),
        *,
        replicas: int = 1,
        devices: Sequence[int] = (),
        names: Sequence[str] = (),
    ) -> Timeline:
        num_stages = len(forward_s)
        lay_out = training_ticks if backward_s else inference_ticks
        devices = devices or range(num_stages)
        ticks = lay_out(schedule, num_stages, num_micro_batches)
        ends: dict[Box, float] = {}
        free = dict.fromkeys(devices, 0.0)
        waiting = {one: list(boxes) for one, boxes in order_on_devices(ticks, devices).items()}
        timed = []
        while any(waiting.values()):
            for device, boxes in waiting.items():
                while boxes and all(one in ends for one in needs(boxes[0], num_stages)):
                    box = boxes.pop(0)
                    start_s = max([free[device], *(ends[one] for one in needs(box, num_stages))])
                    seconds = (backward_s if box.backward else forward_s)[box.stage]
                    ends[box] = free[device] = start_s + seconds
                    timed += [
                        TimedBox(
                            box=box,
                            device=f"GPU:{device + replica * len(set(devices))}",
                            replica=replica,
                            start_s=start_s,
                            end_s=start_s + seconds,
                        )
                        for replica in range(replicas)
                    ]
        names = names or [f"B{stage + 1}" for stage in range(num_stages)]
        return Timeline(timed, names, title=schedule.capitalize())

    return simulate


def needs(box: Box, num_stages: int) -> list[Box]:
    if not box.backward:
        return [Box(box.stage - 1, box.micro_batch, False)] if box.stage else []
    is_last = box.stage + 1 == num_stages
    behind = [] if is_last else [Box(box.stage + 1, box.micro_batch, True)]
    return [Box(box.stage, box.micro_batch, False), *behind]
