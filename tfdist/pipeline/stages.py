"""Stages and execution strategies: the blocks of each stage, its device, and the schedule."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

from tfdist.pipeline.schedule import SCHEDULES, Schedule
from tfdist.process.text import listed

REPR_WIDTH = 88  # Characters. A longer repr has several lines.

_DEFAULT_SCHEDULE: Schedule = "interleaved"


class AutoStage(Enum):
    """Rules that derive the stages from the blocks.

    Members:
      SAME_AS_DEVICE: The blocks with the same device form a stage. Every block must name a device:
        `Block("B1", device=0)`.
      AUTO_INCREMENT: Each block is a stage. The first one is on device 0, the second on device 1,
        and so on. A block that names a device is on that device instead.
    """

    SAME_AS_DEVICE = "same as device"
    AUTO_INCREMENT = "auto increment"

    def __repr__(self) -> str:
        return f"AutoStage.{self.name}"


@dataclass(frozen=True, init=False, repr=False)
class Stage:
    """Blocks that share a device: `Stage("B1", "B2").device(0)`.

    Args:
      *block_names: One name or more. Their order does not matter.

    Attributes:
      block_names: The names, in the given order.
      device_index: The device set with `device`. If it is None, the stage is on the device that its
        blocks name, or otherwise on the device with the stage's number.

    Raises:
      TypeError: If a name is not a string.
      ValueError: If there is no name, or a name is given twice.
    """

    block_names: tuple[str, ...]
    device_index: int | None

    def __init__(self, *block_names: str) -> None:
        if not block_names:
            raise ValueError('a stage needs at least one block, got none. Write Stage("B1").')
        for name in block_names:
            if not isinstance(name, str):
                raise TypeError(
                    f"the blocks of a stage are named by strings, got {value_and_type(name)}. "
                    'Write Stage("B1", "B2").'
                )
        for name in block_names:
            if block_names.count(name) > 1:
                raise ValueError(
                    f"block {quoted(name)} comes {block_names.count(name)} times in one stage. "
                    "Name it once: a block that is entered again is the same block."
                )
        object.__setattr__(self, "block_names", block_names)
        object.__setattr__(self, "device_index", None)

    def device(self, index: int) -> Stage:
        """Returns a copy of this stage on the device with this index.

        Args:
          index: Index of the GPU, from 0. Without GPUs it is the index of the logical CPU device;
            the host is not counted. If the model is replicated, it is the index among the devices
            of one replica.

        Raises:
          TypeError: If the index is not an integer.
          ValueError: If it is below 0.
        """
        check_device("a stage", index, "device(0)")
        stage = Stage(*self.block_names)
        object.__setattr__(stage, "device_index", index)
        return stage

    def __repr__(self) -> str:
        names = ", ".join(map(quoted, self.block_names))
        place = "" if self.device_index is None else f".device({self.device_index})"
        return f"Stage({names}){place}"


@dataclass(frozen=True, init=False, repr=False)
class PipelinedExecution:
    """Execution in a pipeline: the stages work at the same time, on different micro-batches.

    Args:
      *args: Stages, or one `AutoStage`, by default `AutoStage.SAME_AS_DEVICE`. A block's name or a
        list of names stands for a stage as well.
      schedule: "interleaved" keeps the fewest activations. In "grouped", all stages do
        forwards, then all do backwards, in turn; several stages may share a device in training.
        In "sequential", one stage works at a time, as in `ShardedExecution`.

    Attributes:
      stages: The stages in the given order, or the `AutoStage`.
      schedule: The schedule's name.

    Raises:
      TypeError: If an argument has another type.
      ValueError: If a block is in two stages, an AutoStage is not the only argument, or the
        schedule is not known.
    """

    stages: tuple[Stage, ...] | AutoStage
    schedule: Schedule

    def __init__(
        self, *args: Stage | str | Sequence[str] | AutoStage, schedule: Schedule = _DEFAULT_SCHEDULE
    ) -> None:
        if schedule not in SCHEDULES:
            raise ValueError(
                f"schedule {schedule!r} is not known. Write {listed(map(quoted, SCHEDULES), 'or')}."
            )
        object.__setattr__(self, "stages", _read_stages(args))
        object.__setattr__(self, "schedule", schedule)

    def __repr__(self) -> str:
        args = _args_shown(self.stages)
        if self.schedule != _DEFAULT_SCHEDULE:
            args.append(f"schedule={quoted(self.schedule)}")
        return _call_shown("PipelinedExecution", args)


@dataclass(frozen=True, init=False, repr=False)
class ShardedExecution:
    """Execution without a pipeline, for debugging: one stage works at a time.

    A micro-batch starts when the previous one has finished.

    Args:
      *args: As for `PipelinedExecution`.

    Attributes:
      stages: The stages in the given order, or the `AutoStage`.

    Raises:
      TypeError: If an argument has another type.
      ValueError: If a block is in two stages, or an AutoStage is not the only argument.
    """

    stages: tuple[Stage, ...] | AutoStage

    def __init__(self, *args: Stage | str | Sequence[str] | AutoStage) -> None:
        object.__setattr__(self, "stages", _read_stages(args))

    @property
    def schedule(self) -> Schedule:
        """The schedule's name, always "sequential"."""
        return "sequential"

    def __repr__(self) -> str:
        return _call_shown("ShardedExecution", _args_shown(self.stages))


ExecutionStrategy: TypeAlias = PipelinedExecution | ShardedExecution


def check_device(of: str, index: Any, first: str) -> None:
    """Refuses a device that is no integer (TypeError) or below 0 (ValueError).

    `first` is how the first device is written.
    """
    if isinstance(index, bool) or not isinstance(index, int):
        raise TypeError(f"{of}'s device is an integer, got {value_and_type(index)}. Write {first}.")
    if index < 0:
        raise ValueError(f"{of}'s device is 0 or above, got {index}. The first is {first}.")


def value_and_type(value: Any) -> str:
    """Returns a value of a wrong type together with its type, for an error message."""
    return f"{value!r} ({type(value).__name__})"


def quoted(name: str) -> str:
    """Returns a string in double quotes, as it is written in a program."""
    return json.dumps(name, ensure_ascii=False)


def _read_stages(args: tuple[Any, ...]) -> tuple[Stage, ...] | AutoStage:
    """Returns the stages that the arguments of an execution strategy stand for."""
    if not args:
        return AutoStage.SAME_AS_DEVICE
    if isinstance(args[0], AutoStage) and len(args) == 1:
        return args[0]
    if any(isinstance(arg, AutoStage) for arg in args):
        raise ValueError(
            f"an AutoStage stands alone, got {listed(map(repr, args))}. "
            "Write it without the rest, or the stages without it."
        )
    stages = tuple(_read_stage(arg) for arg in args)
    stage_of: dict[str, Stage] = {}
    for stage in stages:
        for name in stage.block_names:
            if name in stage_of:
                raise ValueError(
                    f"block {quoted(name)} is in two stages, {stage_of[name]} and {stage}. "
                    "Leave it in one of them."
                )
            stage_of[name] = stage
    return stages


def _read_stage(written: Any) -> Stage:
    if isinstance(written, Stage):
        return written
    if isinstance(written, str):
        return Stage(written)
    if isinstance(written, (list, tuple)) and not any(
        isinstance(stage, Stage) for stage in written
    ):
        return Stage(*written)
    raise TypeError(
        f"an execution strategy takes stages, names of blocks, lists of names or one AutoStage, "
        f'got {value_and_type(written)}. Write PipelinedExecution(Stage("B1", "B2"), Stage("B3")).'
    )


def _args_shown(stages: tuple[Stage, ...] | AutoStage) -> list[str]:
    return [repr(stage) for stage in ([stages] if isinstance(stages, AutoStage) else stages)]


def _call_shown(name: str, args: Sequence[str]) -> str:
    line = f"{name}({', '.join(args)})"
    if len(line) <= REPR_WIDTH:
        return line
    return "\n".join([f"{name}(", *(f"    {arg}," for arg in args), ")"])
