"""Pure: what a plan of stages asks of the options and of the machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tfdist.cluster.tasks import listed
from tfdist.pipeline.schedule import (
    Schedule,
    smallest_accumulation,
    smallest_device_iterations,
)
from tfdist.pipeline.stage_plan import PlannedStage, devices_per_replica
from tfdist.pipeline.stages import quoted


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
