"""Times of one pipelined step: start and end of each box, and totals by stage and device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from tfdist.pipeline.schedule import Box
from tfdist.profile.records import Span, length, union


@dataclass(frozen=True, kw_only=True)
class TimedBox:
    """A box of the schedule with its start and end."""

    box: Box  # The stage, the micro-batch and the direction.
    device: str  # The device that ran the box, such as "GPU:0".
    replica: int  # The box's copy of the model, from 0.
    start_s: float  # Start in seconds, by any clock that all boxes of a timeline share.
    end_s: float  # End in seconds, by the same clock.

    @property
    def span(self) -> Span:
        return self.start_s, self.end_s


@dataclass(frozen=True, kw_only=True)
class StageTimes:
    """Times of one stage in a step: the mean over its replicas, unless stated otherwise."""

    index: int  # The stage's number, from 0.
    name: str  # The stage's name, such as the names of its blocks.
    devices: tuple[str, ...]  # The stage's devices, one for each replica.
    forward_s: float  # The mean duration of a forward of one micro-batch.
    # The mean duration of a backward of one micro-batch; 0 if there is none, as in inference.
    backward_s: float
    busy_share: float  # The share of the step during which the stage worked, from 0 to 1.
    # The largest number of micro-batches that were, at the same time and in one replica, between
    # the start of their forward and the end of their backward on this stage.
    peak_activations: int

    @property
    def micro_batch_s(self) -> float:
        """Mean duration of the forward and backward of one micro-batch together."""
        return self.forward_s + self.backward_s


@dataclass(frozen=True, kw_only=True)
class DeviceTimes:
    """Times of one device in a step."""

    name: str  # The device's name, such as "GPU:0".
    # The device's stages as pairs (replica, stage): one, or several that share the device.
    lanes: tuple[tuple[int, int], ...]
    idle: tuple[Span, ...]  # The spans of the step in which the device ran no box, by rising start.
    busy_share: float  # The share of the step in which the device ran boxes, from 0 to 1.


@dataclass(frozen=True)
class Timeline:
    """The boxes of one step, and totals of their times by stage and device.

    The step lasts from the start of the first box to the end of the last one.
    """

    boxes: Sequence[TimedBox]  # The boxes of all replicas, in any order.
    stage_names: Sequence[str]  # A name for each stage, such as the names of its blocks.
    # The first words of the text and the picture, such as the execution strategy.
    title: str = "Pipeline"

    @cached_property
    def start_s(self) -> float:
        """Start of the first box, in seconds."""
        return min(timed.start_s for timed in self.boxes)

    @cached_property
    def duration_s(self) -> float:
        """Time from the start of the first box to the end of the last one, in seconds."""
        return max(timed.end_s for timed in self.boxes) - self.start_s

    @cached_property
    def num_micro_batches(self) -> int:
        """Number of micro-batches of each replica."""
        return len({timed.box.micro_batch for timed in self.boxes})

    @cached_property
    def num_replicas(self) -> int:
        """Number of copies of the model."""
        return len({timed.replica for timed in self.boxes})

    @cached_property
    def stages(self) -> tuple[StageTimes, ...]:
        """Times of each stage, in the order of the forward pass."""
        return tuple(self._stage(index) for index in range(len(self.stage_names)))

    @cached_property
    def devices(self) -> tuple[DeviceTimes, ...]:
        """Times of each device, in the order of the replicas and their stages."""
        lanes: dict[str, set[tuple[int, int]]] = {}
        for timed in self.boxes:
            lanes.setdefault(timed.device, set()).add((timed.replica, timed.box.stage))
        in_order = sorted(lanes, key=lambda name: (min(lanes[name]), name))
        return tuple(self._device(name, tuple(sorted(lanes[name]))) for name in in_order)

    @property
    def busy_share(self) -> float:
        """Share of the step in which the devices worked, from 0 to 1; the mean over them."""
        return _mean(device.busy_share for device in self.devices)

    @property
    def slowest_stage(self) -> StageTimes:
        """The stage with the longest forward and backward of one micro-batch."""
        return max(self.stages, key=lambda stage: stage.micro_batch_s)

    @property
    def imbalance(self) -> float:
        """The slowest stage's time for one micro-batch, over the mean; 1 is an even cut."""
        return self.over_mean(self.slowest_stage)

    def over_mean(self, stage: StageTimes) -> float:
        """Returns a stage's time for one micro-batch, divided by the mean of all stages."""
        mean_s = _mean(other.micro_batch_s for other in self.stages)
        return stage.micro_batch_s / mean_s if mean_s else 1.0

    def boxes_of(self, device: str, lane: tuple[int, int]) -> list[TimedBox]:
        """Returns the boxes that a device ran for a (replica, stage), by rising start."""
        found = (
            timed
            for timed in self.boxes
            if timed.device == device and (timed.replica, timed.box.stage) == lane
        )
        return sorted(found, key=lambda timed: timed.span)

    def _stage(self, index: int) -> StageTimes:
        boxes = [timed for timed in self.boxes if timed.box.stage == index]
        devices = {timed.replica: timed.device for timed in boxes}
        work_s = sum(timed.end_s - timed.start_s for timed in boxes)
        replicas = {timed.replica for timed in boxes}
        return StageTimes(
            index=index,
            name=self.stage_names[index],
            devices=tuple(devices[replica] for replica in sorted(devices)),
            forward_s=_mean(_durations(boxes, backward=False)),
            backward_s=_mean(_durations(boxes, backward=True)),
            busy_share=self._share(work_s / len(replicas)),
            peak_activations=max(
                peak_activations([timed for timed in boxes if timed.replica == replica])
                for replica in replicas
            ),
        )

    def _device(self, name: str, lanes: tuple[tuple[int, int], ...]) -> DeviceTimes:
        busy = union(timed.span for timed in self.boxes if timed.device == name)
        end_s = self.start_s + self.duration_s
        ends = [self.start_s, *(end for _, end in busy)]
        starts = [*(start for start, _ in busy), end_s]
        return DeviceTimes(
            name=name,
            lanes=lanes,
            idle=tuple(span for span in zip(ends, starts, strict=True) if span[1] > span[0]),
            busy_share=self._share(length(busy)),
        )

    def _share(self, seconds: float) -> float:
        return seconds / self.duration_s if self.duration_s else 1.0


def peak_activations(boxes: Iterable[TimedBox]) -> int:
    """Returns the most micro-batches that one stage of one replica had in progress at once.

    A micro-batch is in progress from the start of its forward to the end of its backward: the time
    for which its activations are kept. A forward without a backward, as in inference, keeps none.
    """
    boxes = list(boxes)
    returning = {timed.box.micro_batch for timed in boxes if timed.box.backward}
    # At equal times activations are freed before others are kept: -1 sorts before +1.
    changes = [(timed.end_s, -1) for timed in boxes if timed.box.backward]
    changes += [
        (timed.start_s, 1)
        for timed in boxes
        if not timed.box.backward and timed.box.micro_batch in returning
    ]
    kept = most = 0
    for _, change in sorted(changes):
        kept += change
        most = max(most, kept)
    return most


def _durations(boxes: Iterable[TimedBox], backward: bool) -> list[float]:
    return [timed.end_s - timed.start_s for timed in boxes if timed.box.backward == backward]


def _mean(numbers: Iterable[float]) -> float:
    numbers = list(numbers)
    return sum(numbers) / len(numbers) if numbers else 0.0
