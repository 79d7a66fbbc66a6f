"""Planning of stages from blocks and options, and checks of the plan. Pure functions."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tfdist.pipeline.schedule import (
    Schedule,
    smallest_accumulation,
)
from tfdist.pipeline.stages import AutoStage, ExecutionStrategy, Stage, quoted
from tfdist.process.text import did_you_mean, listed


@dataclass(frozen=True)
class FoundBlock:
    """A block that the forward pass has entered."""

    name: str
    device: int | None = None  # The device that the block names, or None.


@dataclass(frozen=True)
class PlannedStage:
    """A stage: consecutive blocks of the forward pass on one device."""

    # Names of the blocks, in the order in which the forward pass enters them.
    blocks: tuple[str, ...]
    device: int  # Index of the stage's device among one replica's devices.

    @property
    def name(self) -> str:
        """The blocks' names, for display: "B1+B2"."""
        return "+".join(self.blocks)


def plan_stages(
    strategy: ExecutionStrategy, found: Sequence[FoundBlock]
) -> tuple[PlannedStage, ...]:
    """Returns the stages of a model, in the order of its forward pass.

    A stage is on the device that it names. If it names none, it is on the device that its blocks
    name, or otherwise on the device with the stage's number. Consecutive stages on the same device
    become one stage. `found` are the blocks in the order in which the forward pass first entered
    them, each once.

    Raises:
      ValueError: If the model has no block, or blocks and stages do not agree: a block is in no
        stage, the model does not have a block of a stage, a block names no device where it must,
        blocks of one stage name different devices, or the stages are not in the order of the
        forward pass.
    """
    if not found:
        raise ValueError(
            "the model has no block: its forward pass entered none. "
            'Write `with Block("B1"):` around its layers.'
        )
    if isinstance(strategy.stages, AutoStage):
        stages = _automatic_stages(strategy.stages, found)
    else:
        stages = strategy.stages
    _refuse_unknown_blocks(stages, found)
    device_named_by = {block.name: block.device for block in found}
    devices = [_device_of(stage, i, device_named_by) for i, stage in enumerate(stages)]
    number_of = {name: i for i, stage in enumerate(stages) for name in stage.block_names}
    runs: list[tuple[int, list[str]]] = []  # A device and its consecutive blocks.
    for block in found:
        device = devices[number_of[block.name]]
        if not runs or runs[-1][0] != device:
            runs.append((device, []))
        runs[-1][1].append(block.name)
    _refuse_other_order(stages, number_of, runs)
    return tuple(PlannedStage(tuple(names), device) for device, names in runs)


def devices_per_replica(stages: Sequence[PlannedStage]) -> int:
    """Returns the number of devices for one copy of the model: the highest index plus 1."""
    return max(stage.device for stage in stages) + 1


def replica_devices(stages: Sequence[PlannedStage], replica: int) -> tuple[int, ...]:
    """Returns the device of each stage of a replica, among all devices of this process.

    The devices of a replica follow the previous replica's: if the stages of replica 0 are on
    devices 0 and 1, the stages of replica 1 are on devices 2 and 3.
    """
    first = replica * devices_per_replica(stages)
    return tuple(first + stage.device for stage in stages)


def _automatic_stages(rule: AutoStage, found: Sequence[FoundBlock]) -> tuple[Stage, ...]:
    if rule is AutoStage.AUTO_INCREMENT:
        return tuple(Stage(block.name) for block in found)
    blocks_on: dict[int, list[str]] = {}
    for block in found:
        if block.device is None:
            name = quoted(block.name)
            raise ValueError(
                f"block {name} names no device, and {rule!r} makes its stages of the blocks' "
                f"devices. Write Block({name}, device=0), or name the stages: "
                f"PipelinedExecution({', '.join(quoted(candidate.name) for candidate in found)})."
            )
        blocks_on.setdefault(block.device, []).append(block.name)
    return tuple(Stage(*names).device(device) for device, names in blocks_on.items())


def _refuse_unknown_blocks(stages: Sequence[Stage], found: Sequence[FoundBlock]) -> None:
    """Refuses a block of the model that is in no stage, and a stage's block that is not in it."""
    in_model = [block.name for block in found]
    in_stages = [name for stage in stages for name in stage.block_names]
    for name in in_model:
        if name not in in_stages:
            raise ValueError(
                f"block {quoted(name)} of the model is in no stage; the stages have "
                f"{_names(in_stages)}.{did_you_mean(name, sorted(set(in_stages) - set(in_model)))} "
                "Add it to a stage."
            )
    for name in in_stages:
        if name not in in_model:
            raise ValueError(
                f"block {quoted(name)} of the stages is not in the model, whose forward pass "
                f"enters {_names(in_model)}. Leave it out of the stages."
            )


def _device_of(stage: Stage, number: int, device_named_by: dict[str, int | None]) -> int:
    if stage.device_index is not None:
        return stage.device_index
    named = {name: device_named_by[name] for name in stage.block_names}
    devices = sorted({device for device in named.values() if device is not None})
    if len(devices) > 1:
        devices_named = listed(f"{quoted(k)} on {v}" for k, v in named.items() if v is not None)
        raise ValueError(
            f"the blocks of {stage} name different devices: {devices_named}. "
            f"Write {stage}.device({devices[0]}), or make two stages."
        )
    return devices[0] if devices else number


def _refuse_other_order(
    stages: Sequence[Stage], number_of: dict[str, int], runs: Sequence[tuple[int, list[str]]]
) -> None:
    """Refuses a stage in two pieces, and stages in another order than the forward pass.

    Stages that are consecutive on one device may be listed in any order: they become one stage.
    """
    met = _names([name for _, names in runs for name in names])
    stages_of_runs = [{number_of[name] for name in names} for _, names in runs]
    seen: set[int] = set()
    for numbers, (_, names) in zip(stages_of_runs, runs, strict=True):
        for name in names:
            if number_of[name] in seen:
                raise ValueError(
                    f"{stages[number_of[name]]} is in pieces: the forward pass meets {met}, with "
                    f"another device before {quoted(name)}. Make {quoted(name)} a stage of its "
                    "own, which may have the same device; AutoStage.AUTO_INCREMENT does so."
                )
        seen |= numbers
    for before, after in itertools.pairwise(stages_of_runs):
        if max(before) > min(after):
            raise ValueError(
                f"{stages[min(after)]} is listed before {stages[max(before)]}, but the forward "
                f"pass meets {met}. List the stages in this order."
            )


def _names(names: Sequence[str]) -> str:
    return listed(map(quoted, names))


def check_plan(
    stages: Sequence[PlannedStage],
    schedule: Schedule,
    *,
    training: bool,
    gradient_accumulation: int,
    device_iterations: int,
    replication_factor: int,
    num_devices: int,
) -> None:
    """Refuses a plan that cannot run with these options or on this machine.

    The arguments after the schedule are as in `Settings`, whether there is a backward pass, and
    the number of this process's devices without the host. The schedule "sequential" needs no
    minimum number of micro-batches, since it does not fill a pipeline.

    Raises:
      ValueError: If there are too few micro-batches or devices, or the schedule does not allow
        several stages on one device.
    """
    if schedule != "sequential":
        _check_filling(len(stages), training, gradient_accumulation, device_iterations)
    if schedule == "interleaved" and training:
        _check_one_stage_a_device(stages)
    _check_devices(stages, replication_factor, num_devices)


def check_inference(gradient_accumulation: int) -> None:
    """Refuses gradient accumulation in inference, by a ValueError."""
    if gradient_accumulation != 1:
        raise ValueError(
            f"gradient_accumulation is {gradient_accumulation}, and must be 1 in inference. Write "
            "options.clone().gradient_accumulation(1), with device_iterations for more "
            "micro-batches in a call."
        )


def _check_filling(
    num_stages: int, training: bool, gradient_accumulation: int, device_iterations: int
) -> None:
    """Refuses a number of micro-batches that is too small for all stages to work at once."""
    name, found, needed, why = "device_iterations", device_iterations, num_stages, ""
    if training:
        name, found = "gradient_accumulation", gradient_accumulation
        needed, why = smallest_accumulation(num_stages), f" (2 x {num_stages} - 1)"
    if found < needed:
        raise ValueError(
            f"{name} is {found}, and pipelined {'training' if training else 'inference'} with "
            f"{num_stages} stages needs at least {needed}{why}. Write options.{name}({needed}), or "
            "use ShardedExecution."
        )


def _check_one_stage_a_device(stages: Sequence[PlannedStage]) -> None:
    device, count = Counter(stage.device for stage in stages).most_common(1)[0]
    if count > 1:
        names = listed(quoted(stage.name) for stage in stages if stage.device == device)
        raise ValueError(
            f"{count} stages are on device {device} ({names}), and in training the schedule "
            '"interleaved" allows one stage a device. Write schedule="grouped" or "sequential".'
        )


def _check_devices(
    stages: Sequence[PlannedStage], replication_factor: int, num_devices: int
) -> None:
    each = devices_per_replica(stages)
    needed = replication_factor * each
    if needed > num_devices:
        highest = max(stages, key=lambda stage: stage.device)
        times = f", for each of {replication_factor} replicas" if replication_factor > 1 else ""
        raise ValueError(
            f"stage {quoted(highest.name)} is on device {highest.device}, so that {needed} "
            f"devices are needed (0 to {each - 1}{times}), but there are {num_devices}. Run on a "
            f"machine with {needed} GPUs, or, without GPUs, call "
            f"tfdist.pipeline.set_cpu_devices({needed}) before TensorFlow's first op."
        )
