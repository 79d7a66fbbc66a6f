"""The options of train.py: presets, and checks that need no TensorFlow.

defaults below  <  preset of configs.yml  <  command line
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import options
from architecture import SIZES
from options import (
    COUNT,
    COUNT_OR_0,
    NOT_NEGATIVE,
    POSITIVE,
    PRECISIONS,
    SHARE,
    UsageError,
    boolean,
    number,
    one_of,
    option,
)

PRESETS = Path(__file__).with_name("configs.yml")

DATASETS = ("digits", "photos", "cifar-10", "cifar-100", "imagenet")
SCHEDULES = ("stepped", "cosine", "polynomial_decay_lr", "exponential")
OPTIMISERS = ("SGD", "momentum", "RMSprop", "LARS", "LAMB")
PIPELINE_SCHEDULES = ("interleaved", "grouped", "sequential")

# Of two such options the command line's takes the place of the preset's; two at once are refused.
ALTERNATIVES = (
    ("epochs", "iterations"),
    ("base_learning_rate", "abs_learning_rate"),
    ("batch_norm", "group_norm"),
    ("loss_scaling", "auto_loss_scaling"),
    ("restore_path", "init_path"),
    ("no_validation", "evaluator"),
)

# What such an option sets is decided by TensorFlow or by the launcher here.
WITHOUT_EFFECT = {
    "available-memory-proportion": "memory is allocated as it is needed",
    "batches-per-step": "each weight update is a session call of its own",
    "ckpt-all-instances": "weights are equal on all workers, and worker 0 saves them",
    "compile-only": "a graph is not compiled ahead; --dry-run checks the plan",
    "device-iterations": "each weight update is a session call of its own",
    "disable-variable-offloading": "variables are on the host",
    "distributed": "the launcher's variables say whether there are other workers",
    "enable-half-partials": "matrix products add up in float32",
    "fp-exceptions": "a loss that is not a number ends the training",
    "gather-conv-output": "there is no such option of a convolution",
    "half-res-training": "images keep their size",
    "internal-exchange-optimisation-target": "devices have no exchange to plan",
    "max-cross-replica-buffer-size": "gradients are reduced in buckets of tfdist",
    "num-io-tiles": "devices have no tiles",
    "on-demand": "devices are not attached",
    "popdist": "the launcher's variables say whether there are other workers",
    "replicated-tensor-sharding": "optimizer states are on the host, once for each worker",
    "select-ipu": "devices are numbered from the first one",
    "stable-norm": "norms are computed in float32",
    "synthetic-data": "use --generated-data",
    "use-popdist": "the launcher's variables say whether there are other workers",
    "wandb": "docs/monitoring.md shows a hook for W&B",
    "xla-recompute": "use --enable-recomputation",
}


def span(text: str) -> int:
    return 0 if text == "all" else COUNT(text)


MOMENTUM = number(float, "a number from 0 to 0.9999", least=0, most=0.9999)
EXPONENT = number(int, "an integer from -40 to 10", least=-40, most=10)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All options with their values."""

    config: str | None = option(None, str, "preset")
    dry_run: bool = option(False, boolean, "print the plan and end")

    # Model.
    model: str = option("resnet", one_of("resnet"), "the model")
    model_size: int = option(8, one_of(*SIZES), "layers with weights")
    batch_norm: bool = option(False, boolean, "batch norm, which is the default")
    group_norm: bool = option(False, boolean, "group norm, which does not depend on batches")
    groups: int | None = option(None, COUNT, "groups of channels, else 8; 32 from size 18 on")
    BN_decay: float = option(0.97, SHARE, "decay of the moving averages")
    BN_span: int = option(1, span, "neighbouring replicas that share batch statistics, or all")

    # Data.
    dataset: str = option("digits", one_of(*DATASETS), "the images")
    data_dir: str | None = option(None, str, "folder of the published files: cifar and imagenet")
    generated_data: bool = option(False, boolean, "one random batch, again and again")
    augment: bool = option(False, boolean, "random crops, and flips where they make sense")
    eight_bit_io: bool = option(False, boolean, "copy images to the device as bytes")

    # Steps.
    batch_size: int = option(32, COUNT, "images in a micro-batch")
    gradient_accumulation_count: int = option(1, COUNT, "micro-batches of a replica in a step")
    replicas: int = option(1, COUNT, "copies of the model in this process; a launcher wins")
    epochs: float | None = option(5, POSITIVE, "passes over the images")
    iterations: int | None = option(None, COUNT, "weight updates, in place of --epochs")
    seed: int = option(0, COUNT_OR_0, "seed of weights and of the order of images")

    # Optimizer.
    optimiser: str = option("momentum", one_of(*OPTIMISERS), "the optimizer")
    momentum: float = option(0.9, MOMENTUM, "of momentum, RMSprop and LARS")
    rmsprop_decay: float = option(0.9, SHARE, "decay of the mean square")
    rmsprop_epsilon: float = option(1e-3, POSITIVE, "added to the mean square")
    weight_decay: float = option(1e-4, NOT_NEGATIVE, "times the weight, added to the gradient")
    lars_eeta: float = option(0.001, POSITIVE, "factor of the trust ratio")
    lars_epsilon: float = option(0.0, NOT_NEGATIVE, "added to the trust ratio's divisor")
    lars_weight_decay: float | None = option(None, NOT_NEGATIVE, "in place of --weight-decay")
    lars_skip_list: tuple[str, ...] = option(
        ("beta", "gamma", "bias"), str, "weights without decay and trust ratio", nargs="*"
    )
    lr_schedule: str = option("cosine", one_of(*SCHEDULES), "learning rate's schedule")
    base_learning_rate: int | None = option(
        -10, EXPONENT, "N: the rate is 2**N times the global batch"
    )
    abs_learning_rate: float | None = option(None, POSITIVE, "the rate itself")
    warmup_epochs: float = option(0.0, NOT_NEGATIVE, "epochs in which the rate rises from 0")
    learning_rate_schedule: tuple[float, ...] = option(
        (0.5, 0.75, 0.875), SHARE, "stepped: shares of the training at which the rate falls"
    )
    learning_rate_decay: tuple[float, ...] = option(
        (0.1, 0.01, 0.001), POSITIVE, "stepped: the factors there; exponential: that at the end"
    )
    poly_lr_decay_power: float = option(2.0, POSITIVE, "power of polynomial_decay_lr")
    abs_end_learning_rate: float = option(0.0, NOT_NEGATIVE, "last rate: cosine and polynomial")
    label_smoothing: float = option(0.0, SHARE, "share of a label that all classes get")
    loss_scaling: float | None = option(None, POSITIVE, "scale of the loss, else 128 in float16")
    auto_loss_scaling: bool = option(False, boolean, "a scale that adapts")
    weight_avg_N: tuple[int, ...] = option((), COUNT, "mean of the last N checkpoints")
    weight_avg_exp: tuple[float, ...] = option((), SHARE, "exponential mean with this decay")

    # Devices.
    precision: str = option("32.32", one_of(*PRECISIONS), "bits of computation and of weights")
    no_stochastic_rounding: bool = option(False, boolean, "half weights to nearest")
    pipeline: bool = option(False, boolean, "stages of the model on devices of their own")
    shards: int = option(1, COUNT, "devices of a replica")
    pipeline_splits: tuple[str, ...] = option((), str, "points behind which the model is cut")
    pipeline_schedule: str = option("interleaved", one_of(*PIPELINE_SCHEDULES), "its order")
    enable_recomputation: bool = option(False, boolean, "compute activations twice")

    # Files.
    log_dir: str = option("logs", str, "the folder of the run is made in it")
    name_suffix: str = option("", str, "end of the name of the folder of the run")
    logs_per_epoch: float = option(16.0, POSITIVE, "log lines in an epoch")
    log_freq: int | None = option(None, COUNT, "steps between two log lines")
    log_all_instances: bool = option(False, boolean, "a log of each worker")
    ckpts_per_epoch: float = option(1.0, POSITIVE, "checkpoints in an epoch")
    no_validation: bool = option(False, boolean, "leave out the validation at the end")
    evaluator: bool = option(False, boolean, "the evaluator of `tfdist run --evaluator` validates")
    restore_path: str | None = option(None, str, "folder of a run, or a checkpoint, to go on with")
    init_path: str | None = option(None, str, "checkpoint with the first weights")
    profile: bool = option(False, boolean, "time and picture of steps 10 to 12")

    @property
    def norm(self) -> str:
        return "group" if self.group_norm else "batch"


def parse(argv: Sequence[str]) -> tuple[Settings, list[str]]:
    """Returns the settings, and a line for each option that has no effect.

    Raises:
      UsageError: If they cannot be used.
    """
    settings, given, notes = options.parse(
        Settings, argv, presets=PRESETS, without_effect=WITHOUT_EFFECT, alternatives=ALTERNATIVES
    )
    settings = _complete(settings)
    _check(settings, given)
    return settings, notes


def _complete(settings: Settings) -> Settings:
    """Returns the settings with the values that follow from others."""
    found: dict[str, Any] = {}
    if settings.iterations is not None:
        found["epochs"] = None
    if settings.abs_learning_rate is not None:
        found["base_learning_rate"] = None
    if settings.groups is None:
        found["groups"] = 32 if settings.model_size in (18, 34, 50) else 8
    if settings.loss_scaling is None and settings.precision.startswith("16."):
        found["loss_scaling"] = 128.0
    if settings.lars_weight_decay is None:
        found["lars_weight_decay"] = settings.weight_decay
    return replace(settings, **found)


def _check(settings: Settings, given: dict[str, Any]) -> None:
    """Refuses options that do not go together.

    `given` are those of the command line: a preset may have one that another takes the sense of.
    """
    for name, needed in {"groups": "--group-norm", "BN_span": "--batch-norm"}.items():
        if name in given and settings.norm not in needed:
            raise UsageError(
                f"--{name.replace('_', '-')} is for {needed}: leave it out, or add {needed}"
            )
    first_filters = 64 if settings.model_size in (18, 34, 50) else 16
    if settings.norm == "group" and first_filters % settings.groups:
        fitting = [str(n) for n in range(1, first_filters + 1) if first_filters % n == 0]
        raise UsageError(
            f"--groups {settings.groups} does not divide the {first_filters} filters of the first "
            f"convolution: {', '.join(fitting)} do"
        )
    if len(settings.learning_rate_schedule) != len(settings.learning_rate_decay) and (
        settings.lr_schedule == "stepped"
    ):
        raise UsageError(
            f"--learning-rate-schedule has {len(settings.learning_rate_schedule)} points and "
            f"--learning-rate-decay {len(settings.learning_rate_decay)} factors: give as many"
        )
    if sorted(set(settings.learning_rate_schedule)) != list(settings.learning_rate_schedule):
        raise UsageError(
            "the points of --learning-rate-schedule must increase, as in 0.5 0.75 0.875"
        )
    if settings.optimiser == "RMSprop" and settings.precision.endswith(".16"):
        raise UsageError(
            f"--optimiser RMSprop does not keep small updates of half weights (--precision "
            f"{settings.precision}): use SGD, momentum, LARS or LAMB, or "
            f"{settings.precision[:-2]}32"
        )
    if settings.no_stochastic_rounding and not settings.precision.endswith(".16"):
        raise UsageError(
            f"--no-stochastic-rounding is for weights in half precision, and --precision is "
            f"{settings.precision}: leave it out, or use 16.16 or bf16.16"
        )
    if not settings.pipeline:
        for name in ("shards", "pipeline_splits", "pipeline_schedule"):
            if name in given and getattr(settings, name) not in (1, ()):
                raise UsageError(f"--{name.replace('_', '-')} is for a pipeline: add --pipeline")
