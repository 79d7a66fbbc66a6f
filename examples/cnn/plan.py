"""The plan of a run, from its options, its data and its place in the launcher's run.

Everything here is decided before TensorFlow is imported: sizes, steps, devices, and what is wrong.
"""

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from architecture import Segment, count_parameters, cut, make_segments, split_evenly
from arguments import nearest, refuse
from datasets import DATASETS, DataError, Dataset, Facts, open_dataset

from tfdist.cluster.instances import Instance


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Sizes of a run.

    Attributes:
      facts: The sizes of the data.
      micro_batch: Images in a forward pass.
      accumulation: Micro-batches of each replica in a step.
      replicas: Replicas of each worker.
      workers: Workers of the run.
      worker: The index of this worker; the evaluator comes after the workers.
      num_steps: Weight updates.
      steps_per_epoch: Weight updates in which as many images are read as there are.
      log_interval_steps: Steps between two log lines.
      checkpoint_interval_steps: Steps between two checkpoints.
      stages: The segments of the model on each device of a replica.
      learning_rate: The highest learning rate.
      warmup_steps: Steps in which it rises.
    """

    facts: Facts
    micro_batch: int
    accumulation: int
    replicas: int
    workers: int
    worker: int
    num_steps: int
    steps_per_epoch: float
    log_interval_steps: int
    checkpoint_interval_steps: int
    stages: Sequence[Sequence[Segment]]
    learning_rate: float
    warmup_steps: int

    @property
    def is_evaluator(self) -> bool:
        return self.worker == self.workers

    @property
    def total_replicas(self) -> int:
        return self.replicas * self.workers

    @property
    def global_batch(self) -> int:
        return self.micro_batch * self.accumulation * self.total_replicas

    @property
    def segments(self) -> list[Segment]:
        return [segment for stage in self.stages for segment in stage]


def find_data(arguments: argparse.Namespace) -> tuple[Facts, Dataset | None]:
    """Returns the sizes of the data, and the data; --dry-run does not need the files."""
    facts = DATASETS[arguments.dataset]
    if arguments.dry_run:
        return facts, None
    try:
        dataset = open_dataset(
            arguments.dataset,
            seed=arguments.seed,
            data_dir=arguments.data_dir,
            generated=arguments.generated_data,
        )
    except DataError as error:
        refuse(str(error))
    return replace(facts, num_training=dataset.training.num_images), dataset


def make_plan(arguments: argparse.Namespace, facts: Facts, instance: Instance) -> Plan:
    """Makes the plan; ends the program with one line where the options cannot be carried out.

    Args:
      arguments: The options.
      facts: The sizes of the data set.
      instance: This process among those of the run.
    """
    replicas = arguments.replicas
    if instance.source == "tfdist run" or instance.num_local_replicas > 1:
        replicas = instance.num_local_replicas  # The launcher's number wins.
    if arguments.evaluator and replicas != arguments.replicas:
        refuse(
            f"the launcher has chosen {replicas} replica(s) for each worker, and does not tell the "
            f"evaluator: give --replicas {replicas} as well"
        )
    *_, channels = facts.image_shape
    segments = make_segments(arguments.model_size, channels, facts.num_classes)
    stages = _cut(arguments, segments)
    total_replicas = replicas * instance.num_instances
    _check_norm(arguments, total_replicas)
    batch = arguments.batch_size * arguments.gradient_accumulation_count * total_replicas
    if batch > facts.num_training:
        refuse(
            f"a step takes {batch:,} images (micro-batch {arguments.batch_size} x accumulation "
            f"{arguments.gradient_accumulation_count} x {replicas} replicas x "
            f"{instance.num_instances} workers), and {arguments.dataset} has "
            f"{facts.num_training:,} to train: make one of them smaller"
        )
    steps_per_epoch = facts.num_training / batch
    num_steps = arguments.iterations or max(1, int(arguments.epochs * steps_per_epoch))
    warmup_steps = round(arguments.warmup_epochs * steps_per_epoch)
    if warmup_steps >= num_steps:
        refuse(
            f"--warmup-epochs {arguments.warmup_epochs:g} are {warmup_steps} steps, and the run "
            f"has {num_steps}: make the warm-up shorter"
        )
    return Plan(
        facts=facts,
        micro_batch=arguments.batch_size,
        accumulation=arguments.gradient_accumulation_count,
        replicas=replicas,
        workers=instance.num_instances,
        worker=instance.index,
        num_steps=num_steps,
        steps_per_epoch=steps_per_epoch,
        log_interval_steps=arguments.log_freq
        or max(1, round(steps_per_epoch / arguments.logs_per_epoch)),
        checkpoint_interval_steps=max(1, round(steps_per_epoch / arguments.ckpts_per_epoch)),
        stages=stages,
        learning_rate=arguments.abs_learning_rate or 2.0**arguments.base_learning_rate * batch,
        warmup_steps=warmup_steps,
    )


def _cut(arguments: argparse.Namespace, segments: Sequence[Segment]) -> list[list[Segment]]:
    """Returns the segments of each stage."""
    if not arguments.pipeline:
        return [list(segments)]
    points = [segment.name for segment in segments[:-1]]
    shards, splits = arguments.shards, list(arguments.pipeline_splits)
    if shards < 2:
        refuse(f"--pipeline needs at least 2 devices, and --shards is {shards}: use --shards 2")
    if shards > len(segments):
        refuse(
            f"--shards {shards} is more than the {len(segments)} segments of ResNet-"
            f"{arguments.model_size}: use {len(segments)} or fewer"
        )
    for point in splits:
        if point not in points:
            refuse(
                f"--pipeline-splits {point} is no point of ResNet-{arguments.model_size}."
                f"{nearest(point, points)} Its points: {', '.join(points)}"
            )
    if not splits:
        splits = split_evenly(segments, shards)
    if len(splits) != shards - 1:
        refuse(
            f"--pipeline-splits has {len(splits)} points, which make {len(splits) + 1} stages, "
            f"and --shards is {shards}: give {shards - 1}, or --shards {len(splits) + 1}"
        )
    if [point for point in points if point in splits] != splits:
        refuse(f"the points of --pipeline-splits must be in order, each once: {', '.join(points)}")
    count, needed = arguments.gradient_accumulation_count, 2 * shards - 1
    if count < needed and arguments.pipeline_schedule != "sequential":
        refuse(
            f"--gradient-accumulation-count {count} does not fill a pipeline of {shards} stages: "
            f"{needed} (2 x {shards} - 1) does, or --pipeline-schedule sequential"
        )
    return cut(segments, splits)


def _check_norm(arguments: argparse.Namespace, total_replicas: int) -> None:
    """Refuses batch statistics over replicas that cannot be computed."""
    span = arguments.BN_span
    if arguments.norm != "batch" or span == 1:
        return
    shown = f"--BN-span {span or 'all'}"
    if span and total_replicas % span:
        fitting = [str(n) for n in range(1, total_replicas + 1) if total_replicas % n == 0]
        refuse(
            f"{shown} does not divide the {total_replicas} replicas of the run: "
            f"{', '.join(fitting)} do"
        )
    for name in ("pipeline", "enable_recomputation"):
        if getattr(arguments, name) and total_replicas > 1:
            refuse(
                f"{shown} and --{name.replace('_', '-')} cannot be used together: use --BN-span "
                "1, or --group-norm"
            )


def describe(plan: Plan, arguments: argparse.Namespace) -> str:
    """Returns the plan as text."""
    parameters = count_parameters(plan.segments)
    norm = {
        "group": f"group norm, {arguments.groups} groups",
        "batch": f"batch norm over {arguments.BN_span or plan.total_replicas} replica(s)",
    }[arguments.norm]
    epochs = plan.num_steps / plan.steps_per_epoch
    lines = {
        "model": f"ResNet-{arguments.model_size}, {norm}, {arguments.precision}",
        "parameters": f"{parameters:,} ({parameters * 4 / 1e6:.1f} MB in float32)",
        "data": f"{arguments.dataset}{', generated' if arguments.generated_data else ''}: "
        f"{plan.facts.num_training:,} images of {'x'.join(map(str, plan.facts.image_shape))}",
        "global batch": f"{plan.global_batch:,} = micro-batch {plan.micro_batch} x accumulation "
        f"{plan.accumulation} x {plan.replicas} replica(s) x {plan.workers} worker(s)",
        "steps": f"{plan.num_steps:,} ({epochs:.2f} epochs of {plan.steps_per_epoch:.2f} steps)",
        "optimiser": f"{arguments.optimiser}, learning rate {plan.learning_rate:.4g} "
        f"({arguments.lr_schedule}, warm-up {plan.warmup_steps} steps)",
        "devices": f"{len(plan.stages) * plan.replicas} in each of {plan.workers} worker(s)",
        "log": f"every {plan.log_interval_steps} steps",
        "checkpoints": f"every {plan.checkpoint_interval_steps} steps, "
        f"{math.ceil(plan.num_steps / plan.checkpoint_interval_steps) + 1} in all",
    }
    text = [f"{name + ':':13} {value}" for name, value in lines.items()]
    if len(plan.stages) > 1:
        for number, stage in enumerate(plan.stages):
            name = stage[0].name if len(stage) == 1 else f"{stage[0].name} to {stage[-1].name}"
            text.append(f"{f'stage {number}:':13} {name}, {count_parameters(stage):,} parameters")
    return "\n".join(text)
