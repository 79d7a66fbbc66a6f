"""The plan of a run, from its options, its data and its place in the launcher's run.

Everything here is decided before TensorFlow is imported: sizes, steps, devices, and what is wrong.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from architecture import Segment, count_parameters, cut, make_segments, split_evenly
from arguments import Settings
from datasets import DATASETS, Dataset, Facts, open_dataset
from layout import Layout, check_fills_pipeline, find_layout
from options import UsageError, nearest

from tfdist.cluster.instances import Instance


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Sizes of a run."""

    facts: Facts  # The sizes of the data.
    # Micro-batches, replicas and workers of a step, and this worker's place among them.
    layout: Layout
    num_steps: int  # Weight updates.
    steps_per_epoch: float  # Weight updates in which as many images are read as there are.
    log_interval_steps: int  # Steps between two log lines.
    checkpoint_interval_steps: int  # Steps between two checkpoints.
    stages: Sequence[Sequence[Segment]]  # The segments of the model on each device of a replica.
    learning_rate: float  # The highest learning rate.
    warmup_steps: int  # Steps in which it rises.

    @property
    def is_evaluator(self) -> bool:
        return self.layout.worker == self.layout.workers

    @property
    def segments(self) -> list[Segment]:
        return [segment for stage in self.stages for segment in stage]


def find_data(settings: Settings) -> tuple[Facts, Dataset | None]:
    """Returns the sizes of the data, and the data; --dry-run does not need the files."""
    facts = DATASETS[settings.dataset]
    if settings.dry_run:
        return facts, None
    dataset = open_dataset(
        settings.dataset,
        seed=settings.seed,
        data_dir=settings.data_dir,
        generated=settings.generated_data,
    )
    return replace(facts, num_training=dataset.training.num_images), dataset


def make_plan(settings: Settings, facts: Facts, instance: Instance) -> Plan:
    """Returns the plan of a run, for this process among those of the run.

    Raises:
      UsageError: If the options cannot be carried out.
    """
    layout = find_layout(
        instance,
        micro_batch=settings.batch_size,
        accumulation=settings.gradient_accumulation_count,
        requested=settings.replicas,
    )
    if settings.evaluator and layout.replicas != settings.replicas:
        raise UsageError(
            f"the launcher has chosen {layout.replicas} replica(s) for each worker, and does not "
            f"tell the evaluator: give --replicas {layout.replicas} as well"
        )
    *_, channels = facts.image_shape
    segments = make_segments(settings.model_size, channels, facts.num_classes)
    stages = _cut(settings, segments)
    _check_norm(settings, layout.total_replicas)
    batch = layout.global_batch
    if batch > facts.num_training:
        raise UsageError(
            f"a step takes {batch:,} images ({layout.describe()}), and {settings.dataset} has "
            f"{facts.num_training:,} to train: make one of them smaller"
        )
    steps_per_epoch = facts.num_training / batch
    num_steps = settings.iterations or max(1, int(settings.epochs * steps_per_epoch))
    warmup_steps = round(settings.warmup_epochs * steps_per_epoch)
    if warmup_steps >= num_steps:
        raise UsageError(
            f"--warmup-epochs {settings.warmup_epochs:g} are {warmup_steps} steps, and the run "
            f"has {num_steps}: make the warm-up shorter"
        )
    return Plan(
        facts=facts,
        layout=layout,
        num_steps=num_steps,
        steps_per_epoch=steps_per_epoch,
        log_interval_steps=settings.log_freq
        or max(1, round(steps_per_epoch / settings.logs_per_epoch)),
        checkpoint_interval_steps=max(1, round(steps_per_epoch / settings.ckpts_per_epoch)),
        stages=stages,
        learning_rate=settings.abs_learning_rate or 2.0**settings.base_learning_rate * batch,
        warmup_steps=warmup_steps,
    )


def _cut(settings: Settings, segments: Sequence[Segment]) -> list[list[Segment]]:
    """Returns the segments of each stage."""
    if not settings.pipeline:
        return [list(segments)]
    points = [segment.name for segment in segments[:-1]]
    shards, splits = settings.shards, list(settings.pipeline_splits)
    if shards < 2:
        raise UsageError(
            f"--pipeline needs at least 2 devices, and --shards is {shards}: use --shards 2"
        )
    if shards > len(segments):
        raise UsageError(
            f"--shards {shards} is more than the {len(segments)} segments of ResNet-"
            f"{settings.model_size}: use {len(segments)} or fewer"
        )
    for point in splits:
        if point not in points:
            raise UsageError(
                f"--pipeline-splits {point} is no point of ResNet-{settings.model_size}."
                f"{nearest(point, points)} Its points: {', '.join(points)}"
            )
    if not splits:
        splits = split_evenly(segments, shards)
    if len(splits) != shards - 1:
        raise UsageError(
            f"--pipeline-splits has {len(splits)} points, which make {len(splits) + 1} stages, "
            f"and --shards is {shards}: give {shards - 1}, or --shards {len(splits) + 1}"
        )
    if [point for point in points if point in splits] != splits:
        raise UsageError(
            f"the points of --pipeline-splits must be in order, each once: {', '.join(points)}"
        )
    count, schedule = settings.gradient_accumulation_count, settings.pipeline_schedule
    check_fills_pipeline(count, shards, schedule, "--gradient-accumulation-count")
    return cut(segments, splits)


def _check_norm(settings: Settings, total_replicas: int) -> None:
    """Refuses batch statistics over replicas that cannot be computed."""
    span = settings.BN_span
    if settings.norm != "batch" or span == 1:
        return
    shown = f"--BN-span {span or 'all'}"
    if span and total_replicas % span:
        fitting = [str(n) for n in range(1, total_replicas + 1) if total_replicas % n == 0]
        raise UsageError(
            f"{shown} does not divide the {total_replicas} replicas of the run: "
            f"{', '.join(fitting)} do"
        )
    for name in ("pipeline", "enable_recomputation"):
        if getattr(settings, name) and total_replicas > 1:
            raise UsageError(
                f"{shown} and --{name.replace('_', '-')} cannot be used together: use --BN-span "
                "1, or --group-norm"
            )


def describe(plan: Plan, settings: Settings) -> str:
    """Returns the plan as text."""
    parameters = count_parameters(plan.segments)
    norm = {
        "group": f"group norm, {settings.groups} groups",
        "batch": f"batch norm over {settings.BN_span or plan.layout.total_replicas} replica(s)",
    }[settings.norm]
    epochs = plan.num_steps / plan.steps_per_epoch
    lines = {
        "model": f"ResNet-{settings.model_size}, {norm}, {settings.precision}",
        "parameters": f"{parameters:,} ({parameters * 4 / 1e6:.1f} MB in float32)",
        "data": f"{settings.dataset}{', generated' if settings.generated_data else ''}: "
        f"{plan.facts.num_training:,} images of {'x'.join(map(str, plan.facts.image_shape))}",
        "global batch": f"{plan.layout.global_batch:,} = {plan.layout.describe()}",
        "steps": f"{plan.num_steps:,} ({epochs:.2f} epochs of {plan.steps_per_epoch:.2f} steps)",
        "optimiser": f"{settings.optimiser}, learning rate {plan.learning_rate:.4g} "
        f"({settings.lr_schedule}, warm-up {plan.warmup_steps} steps)",
        "devices": f"{len(plan.stages) * plan.layout.replicas} in each of "
        f"{plan.layout.workers} worker(s)",
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
