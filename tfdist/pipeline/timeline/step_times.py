"""What one pipelined step spent its time on: each box with its start and its end, and the sums."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from tfdist.pipeline.schedule import Box

# Start and end, in seconds.
Span: TypeAlias = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class TimedBox:
    """A box of the schedule, as it was run.

    Attributes:
      box: The stage, the micro-batch and the direction.
      device: The device that did it, such as "GPU:0".
      replica: The copy of the model that it belongs to, from 0.
      start_s: When it began, by any clock that all boxes of a timeline share.
      end_s: When it ended, by the same clock.
    """

    box: Box
    device: str
    replica: int
    start_s: float
    end_s: float

    @property
    def span(self) -> Span:
        return self.start_s, self.end_s


@dataclass(frozen=True, kw_only=True)
class StageTimes:
    """How one stage spent a step, as the mean of its replicas where nothing else is said.

    Attributes:
      index: The stage's number, from 0.
      name: Its name, such as that of its blocks.
      devices: Its devices, one for each replica.
      forward_s: The mean duration of its forward of one micro-batch.
      backward_s: The same of its backward; 0 where there is none, as in inference.
      busy_share: The share of the step during which it worked, from 0 to 1.
      peak_activations: The most micro-batches that were, in one replica, between the start of
        their forward and the end of their backward on this stage at once.
    """

    index: int
    name: str
    devices: tuple[str, ...]
    forward_s: float
    backward_s: float
    busy_share: float
    peak_activations: int

    @property
    def micro_batch_s(self) -> float:
        """What one micro-batch takes: its forward and its backward."""
        return self.forward_s + self.backward_s


@dataclass(frozen=True, kw_only=True)
class DeviceTimes:
    """How one device spent a step.

    Attributes:
      name: Such as "GPU:0".
      lanes: What it works on, as pairs (replica, stage): one, or several that share the device.
      idle: The spans of the step in which it did none of its boxes, by rising start.
      busy_share: The share of the step that is left, from 0 to 1.
    """

    name: str
    lanes: tuple[tuple[int, int], ...]
    idle: tuple[Span, ...]
    busy_share: float

    @property
    def idle_s(self) -> float:
        return length(self.idle)


@dataclass(frozen=True)
class Timeline:
    """The boxes of one step and what follows from their times.

    The step lasts from the start of the first box to the end of the last one.

    Attributes:
      boxes: All boxes, of all replicas, in any order.
      stage_names: A name for each stage, such as that of its blocks.
      title: What was run: the first words of each picture.

    Raises:
      ValueError: If there are no boxes, a box has no name for its stage or ends before it starts,
        or a stage has no forward.
    """

    boxes: Sequence[TimedBox]
    stage_names: Sequence[str]
    title: str = "Pipeline"

    def __post_init__(self) -> None:
        if not self.boxes:
            raise ValueError("A timeline needs at least one box, got none. Record a whole step.")
        for timed in self.boxes:
            if not 0 <= timed.box.stage < len(self.stage_names):
                raise ValueError(
                    f"A box is of stage {timed.box.stage}, and there are names for "
                    f"{len(self.stage_names)} stages. Name every stage in stage_names."
                )
            if timed.end_s < timed.start_s:
                raise ValueError(
                    f"{timed.box.label} of stage {timed.box.stage} ends at {timed.end_s} s, before "
                    f"its start at {timed.start_s} s. Take both from one clock."
                )
        absent = set(range(len(self.stage_names))) - {
            timed.box.stage for timed in self.boxes if not timed.box.backward
        }
        if absent:
            raise ValueError(
                f"Stage {min(absent)} ({self.stage_names[min(absent)]}) has no forward among the "
                "boxes. Record a whole step."
            )

    @cached_property
    def start_s(self) -> float:
        """When the first box began."""
        return min(timed.start_s for timed in self.boxes)

    @cached_property
    def duration_s(self) -> float:
        """From the start of the first box to the end of the last one."""
        return max(timed.end_s for timed in self.boxes) - self.start_s

    @cached_property
    def num_micro_batches(self) -> int:
        """How many micro-batches each replica has."""
        return len({timed.box.micro_batch for timed in self.boxes})

    @cached_property
    def num_replicas(self) -> int:
        """How many copies of the model there are."""
        return len({timed.replica for timed in self.boxes})

    @cached_property
    def stages(self) -> tuple[StageTimes, ...]:
        """What each stage did, in the order of the forward pass."""
        return tuple(self._stage(index) for index in range(len(self.stage_names)))

    @cached_property
    def devices(self) -> tuple[DeviceTimes, ...]:
        """What each device did, in the order of the replicas and their stages."""
        lanes: dict[str, set[tuple[int, int]]] = {}
        for timed in self.boxes:
            lanes.setdefault(timed.device, set()).add((timed.replica, timed.box.stage))
        in_order = sorted(lanes, key=lambda name: (min(lanes[name]), name))
        return tuple(self._device(name, tuple(sorted(lanes[name]))) for name in in_order)

    @property
    def busy_share(self) -> float:
        """The share of all devices' time in which they worked, from 0 to 1."""
        return _mean(device.busy_share for device in self.devices)

    @property
    def slowest_stage(self) -> StageTimes:
        """The stage whose forward and backward of one micro-batch take longest."""
        return max(self.stages, key=lambda stage: stage.micro_batch_s)

    @property
    def imbalance(self) -> float:
        """The slowest stage's time for one micro-batch over the mean of all: 1 is an even cut."""
        return self.over_mean(self.slowest_stage)

    def over_mean(self, stage: StageTimes) -> float:
        """Returns a stage's time for one micro-batch over the mean of all stages."""
        mean_s = _mean(one.micro_batch_s for one in self.stages)
        return stage.micro_batch_s / mean_s if mean_s else 1.0

    def boxes_of(self, device: str, lane: tuple[int, int]) -> list[TimedBox]:
        """Returns what a device did for a (replica, stage), by rising start."""
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
    """Counts the most micro-batches of one stage of one replica that were under way at once.

    A micro-batch is under way from the start of its forward to the end of its backward: the time
    for which its activations are kept. A forward without a backward, as in inference, keeps none.
    """
    boxes = list(boxes)
    returning = {timed.box.micro_batch for timed in boxes if timed.box.backward}
    # At the same moment one is freed before the next is made: -1 sorts before +1.
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


def union(spans: Iterable[Span]) -> list[Span]:
    """Joins spans that touch or overlap; returns those that are left, by rising start."""
    joined: list[Span] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    return joined


def length(spans: Iterable[Span]) -> float:
    """Adds up the lengths of spans that do not overlap."""
    return sum(end - start for start, end in spans)


def _durations(boxes: Iterable[TimedBox], backward: bool) -> list[float]:
    return [timed.end_s - timed.start_s for timed in boxes if timed.box.backward == backward]


def _mean(numbers: Iterable[float]) -> float:
    numbers = list(numbers)
    return sum(numbers) / len(numbers) if numbers else 0.0
