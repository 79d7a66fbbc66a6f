"""A small model with its samples and options; timelines made from a schedule, without a clock."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfdist.pipeline import Block, Options
from tfdist.pipeline.schedule import Box, Schedule, in_order, inference_ticks, training_ticks
from tfdist.pipeline.timeline.step_times import TimedBox, Timeline


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
        waiting: dict[int, list[Box]] = {one: [] for one in devices}
        for box in (box for tick in ticks for box in in_order(tick)):
            waiting[devices[box.stage]].append(box)
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


class Layered(tf.Module):
    """Dense layers in blocks "B1", "B2", ...; with labels also their loss."""

    def __init__(self, num_blocks: int, width: int = 6, device_of: Sequence[int] = ()) -> None:
        super().__init__()
        self.width = width
        self.blocks = [f"B{number + 1}" for number in range(num_blocks)]
        self.device_of = device_of
        self.num_traces = 0
        self.weights: list[tf.Variable] = []

    def __call__(self, x: tf.Tensor, labels: tf.Tensor | None = None) -> Any:
        self.num_traces += 1
        for number, block in enumerate(self.blocks):
            with Block(block, self.device_of[number] if self.device_of else None):
                if number == len(self.weights):
                    rng = np.random.default_rng(number)
                    shape = x.shape[-1], self.width
                    self.weights.append(
                        tf.Variable(rng.normal(size=shape).astype("float32"), name=block)
                    )
                x = tf.tanh(x @ self.weights[number])
        if labels is None:
            return x
        with Block(self.blocks[-1]):
            return x, tf.reduce_mean((x - labels) ** 2)


@pytest.fixture
def layered() -> Callable[..., Layered]:
    """Makes a small model: `layered(num_blocks)`; it makes its weights when it is traced."""
    return Layered


@pytest.fixture
def samples() -> Callable[[int], tuple[np.ndarray, np.ndarray]]:
    """Makes inputs and labels for `layered`, [count, 6] each."""

    def samples(count: int) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(5)
        inputs, labels = rng.normal(size=(2, count, 6)).astype("float32")
        return inputs, labels

    return samples


@pytest.fixture
def quiet() -> Callable[..., Options]:
    """Makes options without a progress bar: `quiet(strategy, **{setter: value})`."""

    def quiet(strategy: Any = None, **settings: Any) -> Options:
        options = Options().show_progress_bar(False)
        if strategy is not None:
            options.execution_strategy(strategy)
        for name, value in settings.items():
            getattr(options, name)(*(value if isinstance(value, tuple) else (value,)))
        return options

    return quiet
