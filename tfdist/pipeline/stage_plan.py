"""The plan of stages: from blocks and options to stages, and checks of the plan. Pure functions."""

from __future__ import annotations

import difflib
import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tfdist.cluster.tasks import listed
from tfdist.pipeline.schedule import (
    Schedule,
    smallest_accumulation,
    smallest_device_iterations,
)
from tfdist.pipeline.stages import AutoStage, ExecutionStrategy, Stage, quoted


@dataclass(frozen=True)
class FoundBlock:
    """A block that the forward pass has entered.

    Attributes:
      name: Its name.
      device: The device that the block names, or None.
    """

    name: str
    device: int | None = None


@dataclass(frozen=True)
class PlannedStage:
    """What one device computes between two others.

    Attributes:
      blocks: Names of its blocks, in the order in which the forward pass meets them.
      device: Index of its device among those of one replica.
    """

    blocks: tuple[str, ...]
    device: int

    @property
    def name(self) -> str:
        """The blocks' names, for display: "B1+B2"."""
        return "+".join(self.blocks)


def plan_stages(
    strategy: ExecutionStrategy, found: Sequence[FoundBlock]
) -> tuple[PlannedStage, ...]:
    """Decides the stages of a model, in the order of its forward pass.

    A stage is on the device that it names itself, else on the one that its blocks name, else on
    the one with its number. Neighbours on the same device become one stage.

    Args:
      strategy: What the user asked for.
      found: The blocks in the order in which the forward pass first entered them, each once.

    Raises:
      ValueError: If blocks and stages do not fit: a block in no stage, a stage's block that the
        model does not have, a block without a device where it needs one, blocks of one stage that
        name different devices, or stages in another order than the forward pass.
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
    runs: list[tuple[int, list[str]]] = []  # A device, and the blocks met one after the other on it
    for block in found:
        device = devices[number_of[block.name]]
        if not runs or runs[-1][0] != device:
            runs.append((device, []))
        runs[-1][1].append(block.name)
    _refuse_other_order(stages, number_of, runs)
    return tuple(PlannedStage(tuple(names), device) for device, names in runs)


def devices_per_replica(stages: Sequence[PlannedStage]) -> int:
    """Returns how many devices one copy of the model takes: up to the highest that is named."""
    return max(stage.device for stage in stages) + 1


def replica_devices(stages: Sequence[PlannedStage], replica: int) -> tuple[int, ...]:
    """Returns the device of each stage of a replica, among all devices of this process.

    The replicas' devices follow each other: of stages on devices 0 and 1, replica 1 has 2 and 3.
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
                f"PipelinedExecution({', '.join(quoted(one.name) for one in found)})."
            )
        blocks_on.setdefault(block.device, []).append(block.name)
    return tuple(Stage(*names).device(device) for device, names in blocks_on.items())


def _refuse_unknown_blocks(stages: Sequence[Stage], found: Sequence[FoundBlock]) -> None:
    """Refuses a block of the model that no stage has, and a stage's block that the model lacks."""
    in_model = [block.name for block in found]
    in_stages = [name for stage in stages for name in stage.block_names]
    for name in in_model:
        if name not in in_stages:
            raise ValueError(
                f"block {quoted(name)} of the model is in no stage; the stages have "
                f"{_names(in_stages)}.{_did_you_mean(name, set(in_stages) - set(in_model))} "
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
        wishes = listed(f"{quoted(k)} on {v}" for k, v in named.items() if v is not None)
        raise ValueError(
            f"the blocks of {stage} name different devices: {wishes}. "
            f"Write {stage}.device({devices[0]}), or make two stages."
        )
    return devices[0] if devices else number


def _refuse_other_order(
    stages: Sequence[Stage], number_of: dict[str, int], runs: Sequence[tuple[int, list[str]]]
) -> None:
    """Refuses a stage in two pieces, and stages that are not listed as the forward pass goes.

    What one device does in one go may be listed in any order: it is one stage in the end.
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


def _did_you_mean(name: str, others: set[str]) -> str:
    by_lower = {other.lower(): other for other in sorted(others)}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1)
    return f" Did you mean {quoted(by_lower[near[0]])}?" if near else ""


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
    """Refuses a plan that its options or this machine cannot carry.

    Args:
      stages: As `plan_stages` gives them.
      schedule: The execution strategy's. "sequential" has no limits of a pipeline: no stage waits
        for another micro-batch to fill it.
      training: Whether there is a backward pass.
      gradient_accumulation: Micro-batches in a weight update.
      device_iterations: Weight updates, or in inference micro-batches, in a call.
      replication_factor: Copies of the model in this process.
      num_devices: How many devices this process has, without the host.

    Raises:
      ValueError: If one of them is too few, or the schedule does not go with the stages' devices.
    """
    if not training:
        check_inference(gradient_accumulation)
    if schedule != "sequential":
        _check_filling(len(stages), training, gradient_accumulation, device_iterations)
    if schedule == "interleaved" and training:
        _check_one_stage_a_device(stages)
    _check_devices(stages, replication_factor, num_devices)


def check_inference(gradient_accumulation: int) -> None:
    """Refuses to accumulate gradients where there are none.

    Raises:
      ValueError: If gradient_accumulation is not 1.
    """
    if gradient_accumulation != 1:
        raise ValueError(
            f"gradient_accumulation is {gradient_accumulation}, and must be 1 in inference. Write "
            "options.clone().gradient_accumulation(1), with device_iterations for more "
            "micro-batches in a call."
        )


def _check_filling(
    num_stages: int, training: bool, gradient_accumulation: int, device_iterations: int
) -> None:
    """Refuses too few micro-batches to have all stages at work at once."""
    name, found = "gradient_accumulation", gradient_accumulation
    needed = smallest_accumulation(num_stages)
    if not training:
        name, found = "device_iterations", device_iterations
        needed = smallest_device_iterations(num_stages)
    if found < needed:
        count = f"{num_stages} stages needs at least {needed}"
        if training:
            count += f" (2 x {num_stages} - 1)"
        raise ValueError(
            f"{name} is {found}, and pipelined {'training' if training else 'inference'} with "
            f"{count}. Write options.{name}({needed}), or use ShardedExecution."
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
